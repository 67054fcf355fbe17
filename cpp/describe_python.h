// Launch records as Python dictionaries.
#pragma once

#include <nanobind/nanobind.h>

#include "recorder_encoder.h"
#include "trace.h"

namespace mlx_tensorops {

nanobind::dict describe(const RecorderEncoder& recorder);
nanobind::dict describe(const TraceRecord& record);

}  // namespace mlx_tensorops
