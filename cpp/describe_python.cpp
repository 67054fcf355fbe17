#include "describe_python.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;

namespace mlx_tensorops {
namespace {

template <typename T>
nb::tuple triple(const std::array<T, 3>& values) {
  return nb::make_tuple(values[0], values[1], values[2]);
}

const char* name_of(Binding::Kind kind) {
  switch (kind) {
    case Binding::Kind::kInput: return "input";
    case Binding::Kind::kOutput: return "output";
    default: return "scalars";
  }
}

nb::dict counters_of(const hm_counters& counters) {
  nb::dict result;
  const auto scalar = [&](const char* name, std::uint64_t value) { result[name] = value; };
  scalar("matmul2d", counters.matmul2d);
  scalar("macs", counters.macs);
  scalar("mma8x8", counters.mma8x8);
  scalar("barriers", counters.barriers);
  scalar("simdgroup_barriers", counters.simdgroup_barriers);
  scalar("simd_ops", counters.simd_ops);
  scalar("threadgroups", counters.threadgroups);
  scalar("threadgroup_bytes", counters.threadgroup_bytes);
  scalar("threadgroup_load", counters.threadgroup_load);
  scalar("threadgroup_store", counters.threadgroup_store);
  scalar("thread_load", counters.thread_load);
  scalar("thread_store", counters.thread_store);
  const auto per_buffer = [&](const char* name, const std::uint64_t (&values)[HM_MAX_BUFFERS]) {
    result[name] = std::vector<std::uint64_t>(values, values + HM_MAX_BUFFERS);
  };
  per_buffer("device_load", counters.device_load);
  per_buffer("device_store", counters.device_store);
  per_buffer("opaque_load", counters.opaque_load);
  return result;
}

}  // namespace

nb::dict describe(const RecorderEncoder& recorder) {
  nb::dict result;
  const Row* row = recorder.row();
  result["row"] = row ? nb::cast(row->key) : nb::none();
  result["zeroed"] = recorder.zeroed();
  if (!row) {
    return result;
  }
  result["kernel"] = row->kernel;
  result["grid"] = triple(recorder.grid());
  result["threads"] = triple(row->threads);
  result["threadgroup_args"] = row->threadgroup_args;
  nb::list bindings;
  nb::dict scalars;
  for (const auto& buffer : recorder.buffers()) {
    nb::dict item;
    item["index"] = buffer.index;
    item["kind"] = name_of(buffer.kind);
    item["bytes"] = buffer.bytes;
    item["offset"] = buffer.offset;
    bindings.append(item);
    if (buffer.kind == Binding::Kind::kScalars) {
      scalars[nb::int_(buffer.index)] =
          unpack(row->bindings[buffer.index].scalars.format, buffer.data.data());
    }
  }
  result["bindings"] = bindings;
  result["scalars"] = scalars;
  return result;
}

nb::dict describe(const TraceRecord& record) {
  nb::dict result;
  result["index"] = record.index;
  result["op"] = record.op;
  result["row"] = record.row;
  result["kernel"] = record.kernel;
  result["backend"] = record.backend;
  result["grid"] = triple(record.grid);
  result["threads"] = triple(record.threads);
  if (record.counters) {
    result["counters"] = counters_of(*record.counters);
  }
  return result;
}

}  // namespace mlx_tensorops
