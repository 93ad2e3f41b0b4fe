#include "group/checks.h"

#include <algorithm>

namespace optireduce {

std::vector<CheckedStep> Checks::tell(std::uint64_t step, std::uint64_t hash) {
  const Progress& progress = core_.progress;
  std::deque<Told>& own = told_[core_.config.rank];
  const Place place{members_.view().number, progress.completed()};
  const bool open = progress.completed() != progress.next_call();
  if (open || members_.halted() || (!own.empty() && place <= own.back().place)) return {};
  std::vector<CheckedStep> settled;
  while (!own.empty()) {
    CheckedStep heard = heard_of(own.front());
    if (own.size() < kept_ && !is_settled(heard)) break;
    settled.push_back(std::move(heard));
    own.pop_front();
  }
  own.push_back({place, step, hash});
  for (const Peer& peer : core_.peers) {
    if (!compares_with(peer.rank)) continue;
    core_.controls.push_back(
        {.type = PacketType::Check, .to = peer.rank, .operation = place.second, .detail = hash});
  }
  return settled;
}

void Checks::handle(const ReceivedRun& run) {
  const Rank from = run.header.sender;
  if (run.header.length != 0 || run.operation >= core_.progress.next_call() + kMaxCallsAhead) {
    core_.stats.malformed_packets += run.packets;
    return;
  }
  const Place place{members_.view().number, run.operation};
  std::deque<Told>& told = told_[from];
  if (!compares_with(from)) {
    core_.stats.other_view_packets += run.packets;
  } else if (!told.empty() && place <= told.back().place) {
    core_.stats.stale_packets += run.packets;  // overtaken, or recorded by somebody
  } else {
    told.push_back({place, 0, run.header.detail});
    if (told.size() > kept_) told.pop_front();
  }
}

bool Checks::compares_with(Rank rank) const {
  return core_.peers[rank].present() && rank != core_.config.rank && members_.view().contains(rank);
}

/// Whether all have told it that will.
bool Checks::is_settled(const CheckedStep& heard) const {
  const auto others =
      std::ranges::count_if(core_.peers, [&](const Peer& peer) { return compares_with(peer.rank); });
  return heard.hashes.size() > static_cast<std::size_t>(others);
}

CheckedStep Checks::heard_of(const Told& own) const {
  CheckedStep heard{own.step, {}};
  for (Rank rank = 0; rank < told_.size(); ++rank) {
    const auto found = std::ranges::find(told_[rank], own.place, &Told::place);
    if (found != told_[rank].end()) heard.hashes.emplace_back(rank, found->hash);
  }
  return heard;
}

}  // namespace optireduce
