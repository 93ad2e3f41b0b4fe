// One endpoint of a grid: over a part of the group, whose ranks it knows by their place there.
#pragma once

#include <memory>
#include <vector>

#include "proto/endpoint.h"

namespace optireduce {

/// The ranks of every row, in the order of the columns. Empty: no grid.
using Rows = std::vector<std::vector<Rank>>;

struct Lane {
  static constexpr Rank kNoPlace = 0xffff;

  std::vector<Rank> members;  // by place
  std::vector<Rank> places;   // by rank of the group
  std::unique_ptr<Endpoint> endpoint;
  bool stirred = false;  // something happened since it last had nothing to send

  void join(std::vector<Rank> ranks, Rank group) {
    members = std::move(ranks);
    places.assign(group, kNoPlace);
    for (std::size_t place = 0; place < members.size(); ++place)
      places[members[place]] = static_cast<Rank>(place);
  }

  bool has(Rank rank) const { return places[rank] != kNoPlace; }
};

}  // namespace optireduce
