#pragma once
#include "../hm_spaces.h"
#ifdef __HAVE_TENSOR__  // without it the real header is empty, too
#include "../hm_mpp.h"
#endif
#pragma clang system_header
