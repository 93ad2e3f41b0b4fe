// What only tests want to know of a group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "group/group.h"

namespace optireduce {

struct Inspection {
  std::uint64_t view = 0;
  std::vector<Rank> members;
  bool away = false;
  bool left_behind = false;
  std::uint64_t completed = 0;
  std::size_t residual_bytes = 0;
  std::size_t engine_bytes = 0;  // of operations not begun, and of the log
  std::size_t waiting_repairs = 0;
  bool routed = false;  // the newest operation goes through a grid

  static Inspection of(const Group& group) {
    const Core& core = group.core_;
    const Members& members = group.members_;
    Inspection seen{.view = members.view().number,
                    .members = members.membership.owners(~std::uint64_t{0}),
                    .away = members.changes.standing().away,
                    .left_behind = members.changes.standing().left_behind,
                    .completed = core.progress.completed(),
                    .residual_bytes = core.residuals.bytes(),
                    .engine_bytes = 0,
                    .waiting_repairs = core.repairs.size()};
    for (const auto& [_, operation] : core.operations.all())
      seen.engine_bytes += operation->exchange().bucket().engine_bytes();
    if (!core.operations.all().empty())
      seen.routed = std::prev(core.operations.all().end())->second->setup().routes != nullptr;
    return seen;
  }
};

inline Inspection inspect(const Group& group) {
  return Inspection::of(group);
}

}  // namespace optireduce
