// Which rows of x meet which expert, and in what sequence.
#include <algorithm>
#include <limits>
#include <sstream>
#include <stdexcept>

#include "gather.h"

namespace mlx_tensorops::cpu {
namespace {

void append(std::vector<Run>& runs, Run run) {
  if (!runs.empty() && runs.back().expert == run.expert && runs.back().end == run.begin) runs.back().end = run.end;
  else if (run.begin < run.end) runs.push_back(run);
}

int64_t expert_of(const Indices& ids, const RowSource& source, int64_t pair, int64_t experts) {
  const int64_t id = ids.at(pair);
  int64_t elements;
  return id < 0 || id >= experts || !source.locate(pair, elements) ? -1 : id;
}

}  // namespace

Walk walk_by_expert(const Indices& ids, const RowSource& source, int64_t first, int64_t count, int64_t experts) {
  Groups groups = group([&](int64_t i) { return expert_of(ids, source, i, experts); }, first, count, experts);
  Walk walk{std::move(groups.order), {}};
  for (int64_t e = 0; e <= experts; e++) append(walk.runs, {e < experts ? e : -1, groups.begin[e], groups.begin[e + 1]});
  return walk;
}

Walk walk_by_plan(const char* op, const Tiles& plan, const Indices& ids, const RowSource& source, int64_t pairs,
                  int64_t experts) {
  auto fail = [&](auto&&... parts) {
    std::ostringstream text;
    text << "[" << op << "] plan: ";
    (text << ... << parts) << "; build the plan from these ids";
    throw std::runtime_error(text.str());
  };
  Walk walk;
  walk.order.resize(pairs);
  std::vector<bool> seen(pairs);
  for (int64_t i = 0; i < pairs; i++) {
    const int64_t pair = plan.order.at(i);
    if (pair < 0 || pair >= pairs || seen[pair]) fail("order[", i, "] = ", pair, " is not a row, or comes twice");
    seen[pair] = true;
    walk.order[i] = static_cast<int32_t>(pair);
  }
  seen.assign(pairs, false);
  int64_t walked = 0;
  for (int64_t t = 0; t < plan.tiles; t++) {
    const int64_t expert = plan.expert.at(t), start = plan.start.at(t), count = plan.count.at(t);
    if (count == 0) continue;
    if (count < 0 || start < 0 || count > pairs || start > pairs - count)
      fail("tile ", t, " has rows ", start, " to ", start + count, " of ", pairs);
    for (int64_t i = start; i < start + count; i++) {
      if (seen[i]) fail("tile ", t, " has row ", i, ", which another tile has, too");
      seen[i] = true;
      const int64_t id = ids.at(walk.order[i]), known = id < 0 || id >= experts ? -1 : id;
      if (known != expert) fail("tile ", t, " is of expert ", expert, ", but row ", walk.order[i], " has id ", id);
      append(walk.runs, {expert_of(ids, source, walk.order[i], experts), i, i + 1});
    }
    walked += count;
  }
  if (walked != pairs) fail("its tiles have ", walked, " of ", pairs, " rows");
  return walk;
}

int64_t RowBlock::take(const RowSource& source, const std::vector<int32_t>& order, int64_t first, int64_t last) {
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  const int64_t end = std::min(last, first + block_rows());
  int64_t base = 0, row = first, count = 0;
  for (; row < end; row++, count++) {
    const int64_t pair = order[row / source.m], line = row % source.m;
    int64_t elements = 0;
    source.locate(pair, elements);
    elements += line * source.x.row;
    if (count == 0) base = elements;
    const int64_t index = (elements - base) / source.unit;
    if (index > most || index < -most) break;
    index_[count] = static_cast<int32_t>(index);
    target_[count] = pair * source.m + line;
  }
  const char* x = static_cast<const char*>(source.x.data) + base * size_of(source.x.type);
  rows_ = {x, source.x.type, source.unit, source.x.column, index_, count};
  return row;
}

}  // namespace mlx_tensorops::cpu
