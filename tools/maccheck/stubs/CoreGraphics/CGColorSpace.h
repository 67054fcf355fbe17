/* See CoreFoundation.h. */
#pragma once
typedef struct CGColorSpace* CGColorSpaceRef;
