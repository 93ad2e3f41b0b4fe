// The part of Group that follows the view: what happens to operations when members are removed or return.
#include <algorithm>

#include "group/group.h"

namespace optireduce {
namespace {

std::vector<std::uint64_t> full_words(const Shard& shard) {
  std::vector<std::uint64_t> words;
  for (std::uint32_t chunk = 0; chunk < shard.chunks(); ++chunk) words.push_back(shard.full_mask(chunk));
  return words;
}

}  // namespace

// ---- What the view change asks

Journal Group::journal() {
  return {.completed = [this] { return progress_.completed(); },
          .floor = [this] { return floor(); },
          .touched_end = [this] { return std::max(progress_.touched_end(), progress_.completed()); },
          .digest = [this](std::uint64_t operation) { return progress_.digest(operation); },
          .open =
              [this] {
                std::vector<OpenOperation> open;
                for (const auto& [key, operation] : operations_.open()) {
                  const bool decided = !operation->reduces() || operation->scatter().undecided_packets() == 0;
                  open.push_back({key.first, !operation->descriptor().bounded, decided});
                }
                return open;
              },
          .held = [this](std::uint64_t operation, RankMask owners) { return held(operation, owners); }};
}

/// The first operation from which on we could send our own decisions to a rank that returns.
std::uint64_t Group::floor() const {
  std::uint64_t first = progress_.completed();
  while (first > 0) {
    const Operation* operation = operations_.find_logged(first - 1);
    if (operation == nullptr || !operation->keeps_own()) break;
    --first;
  }
  return first;
}

std::vector<HeldShard> Group::held(std::uint64_t number, RankMask owners) {
  Operation* const operation = operations_.find_any(number);
  std::vector<HeldShard> shards;
  if (operation == nullptr || !operation->gathers()) return shards;
  for_each_rank(owners, [&](Rank rank) {
    const Rank place = operation->place_of(rank);
    if (place == kNoPlace) return;
    const Shard& shard = operation->gather().shard(place);
    HeldShard held{.operation = number, .owner = rank, .packets = shard.packets(), .held = {}, .kept = {}};
    if (operation->finished()) {
      held.held = full_words(shard);
    } else if (rank == config_.rank && operation->reduces()) {
      for (std::uint32_t chunk = 0; chunk < shard.chunks(); ++chunk)
        held.held.push_back(operation->scatter().decided(chunk));
    } else {
      for (std::uint32_t chunk = 0; chunk < shard.chunks(); ++chunk)
        held.held.push_back(operation->gather().inbox(place).received(chunk));
    }
    held.kept = operation->keeps(place) ? held.held : std::vector<std::uint64_t>(held.held.size(), 0);
    shards.push_back(std::move(held));
  });
  return shards;
}

// ---- Following

/// After everything that may have moved the view change.
void Group::follow_views(Time now) {
  if (!config_.elastic()) return;
  while (const std::optional<View> view = changes_.take_installed()) install(now, *view);
  if (changes_.away() && !std::exchange(clock_.away, true)) {
    outcomes_.events.push_back(
        {MembershipEvent::Kind::Removed, config_.rank, changes_.known(), progress_.completed()});
    for (const auto& [_, operation] : operations_.open()) operation->note_overwritten();
  }
  clock_.away = changes_.away();
  if (changes_.left_behind()) leave_behind(now);
  set_view_timer(now);
  check_quorum(now);
}

void Group::install(Time now, const View& view) {
  ++stats_.views;
  for_each_rank(view.removed & ~view.members, [&](Rank rank) {
    ++stats_.removals;
    peers_[rank].window.on_silence(now);
    outcomes_.events.push_back({MembershipEvent::Kind::Removed, rank, view.number, view.cut});
  });
  for_each_rank(view.joined, [&](Rank rank) {
    if (rank != config_.rank) peers_[rank].completed = view.ranks[rank].completed;
    outcomes_.events.push_back({MembershipEvent::Kind::Returned, rank, view.number, view.cut});
  });
  if (has(view.joined, config_.rank)) return rejoin(now, view);
  std::vector<std::uint64_t> dropped, open;
  for (const auto& [key, operation] : operations_.open())
    (key.first >= view.cut && !operation->begun() ? dropped : open).push_back(key.first);
  for (std::uint64_t number : dropped) operations_.erase_open(number);  // their shards are cut anew
  for (std::uint64_t number : open) {
    Operation* const operation = operations_.find_open(number);
    apply_fates(now, *operation);
    schedule_requests(now, *operation);
  }
  fail_lost_exact(now, view);
  for (std::uint64_t number : open) check_shard(now, number);
  complete_ready(now);
  begin_waiting(now);
  note_owing(now);
}

/// We are a member again. What we had decided or held may not be what the others agreed on: every operation
/// that is not complete here is fetched anew, and only the fate of our contribution to it is still open.
void Group::rejoin(Time now, const View& view) {
  std::vector<std::pair<std::uint64_t, LocalCall>> begun;
  std::vector<std::pair<Descriptor, std::uint32_t>> what;
  for (const auto& [key, operation] : operations_.open()) {
    if (!operation->begun()) continue;
    operation->note_overwritten();
    begun.emplace_back(key.first, operation->call());
    what.emplace_back(operation->descriptor(), operation->setup().stream);
  }
  while (!operations_.open().empty()) operations_.erase_open(operations_.open().begin()->first.first);
  for (std::size_t i = 0; i < begun.size(); ++i) {
    auto& [number, call] = begun[i];
    Operation& operation = make_operation(now, number, Scope::All, what[i].first, what[i].second);
    const bool again = number >= view.cut;
    if (again && !call.intact) call.contributes = false;
    if (again && !call.contributes) call.weight = 0;
    operation.begin(now, call, residuals_);
    schedule_requests(now, operation);
  }
  fail_lost_exact(now, view);
  complete_ready(now);
  begin_waiting(now);
  note_owing(now);
}

/// Members that no longer serve the operation: it does not wait for their contributions. Of their decisions
/// void ones are settled, lost ones end our part.
void Group::apply_fates(Time now, Operation& operation) {
  for (Rank place = 0; place < operation.places(); ++place) {
    const Rank rank = operation.rank_at(place);
    if (membership_.serves(rank, operation.number())) continue;
    operation.remove_member(rank);
    if (!operation.gathers()) continue;
    const Shard& shard = operation.gather().shard(place);
    for (std::uint32_t chunk = 0; chunk < shard.chunks(); ++chunk) {
      const ChunkFate fate = membership_.fate(operation.number(), rank, chunk);
      operation.make_void(rank, chunk, fate.voided, residuals_);
      const std::uint64_t lacking = shard.full_mask(chunk) & ~operation.gather().inbox(place).received(chunk);
      if ((fate.gone & lacking) != 0) return changes_.mark_lost(now);
    }
  }
}

/// Exact operations that needed a removed rank fail on all members. One that was not called yet fails when it
/// is.
void Group::fail_lost_exact(Time now, const View& view) {
  for (std::uint64_t number : view.failed) {
    const Operation* operation = operations_.find_open(number);
    const bool exact = operation != nullptr && !operation->descriptor().bounded;
    if (exact && number >= progress_.completed() && number < progress_.next_call())
      fail_rank_lost(now, number, view);
  }
}

void Group::fail_rank_lost(Time now, std::uint64_t number, const View& view) {
  std::vector<Rank> removed;
  for_each_rank(view.removed, [&](Rank rank) { removed.push_back(rank); });
  std::string names;
  for (Rank rank : removed) names += (names.empty() ? "rank " : ", rank ") + std::to_string(rank);
  fail(now, number, ErrorCode::RankLost, names + " is no member of the group any more", removed);
}

void Group::leave_behind(Time now) {
  if (!std::exchange(outcomes_.told_left_behind, true)) {
    outcomes_.events.push_back(
        {MembershipEvent::Kind::LeftBehind, config_.rank, membership_.view().number, progress_.completed()});
  }
  while (progress_.completed() < progress_.next_call()) {
    fail(now, progress_.completed(), ErrorCode::LeftBehind,
         "this rank was silent, the others went on without it, and they no longer keep what it missed; "
         "restart "
         "it from a checkpoint together with the others",
         {config_.rank});
  }
}

// ---- Silence and quorum

/// A member that owes us something and says nothing is asked, and then suspected.
void Group::note_owing(Time now) {
  if (!config_.elastic()) return;
  const bool waits = !idle();
  membership_.set_owing(now, waits ? membership_.others() : 0);
  membership_.set_exact_open(std::any_of(
      operations_.open().begin(), operations_.open().end(),
      [](const auto& entry) { return !entry.second->descriptor().bounded && entry.second->begun(); }));
  for_each_rank(membership_.take_pings(now),
                [&](Rank rank) { controls_.push_back({.type = PacketType::Ping, .to = rank}); });
  clock_.hears_all = membership_.hears() == membership_.view().members;
  membership_.update(now);
  if (membership_.suspected() != 0) set_pace();
  const RankMask suspects = membership_.suspected();
  stats_.suspicions += static_cast<std::uint64_t>(count_of(suspects & ~clock_.suspects));
  clock_.suspects = suspects;
  if (suspects != 0) changes_.handle_timeout(now);
  set_view_timer(now);
}

/// How fast a change may go: the slowest round trip to a member, and the calls of a step.
void Group::set_pace() {
  Duration round;
  for_each_rank(membership_.others(),
                [&](Rank rank) { round = std::max(round, peers_[rank].rtt.repair_timeout()); });
  const std::uint64_t last = progress_.next_call() == 0 ? 0 : progress_.next_call() - 1;
  std::uint64_t first = last;
  while (first > progress_.first_known() && progress_.step_of(first - 1) == progress_.step_of(last)) --first;
  changes_.set_pace(round, last - first + 1);
}

void Group::set_view_timer(Time now) {
  constexpr Duration kLeast = Duration::micros(100);  // of a rank that has just acted
  static_cast<void>(now);
  const Time next = changes_.poll_timeout();
  timers_.set({TimerKind::View}, next == Time::never() ? next : std::max(next, clock_.viewed_at + kLeast));
}

void Group::check_quorum(Time now) {
  if (!config_.elastic()) return;
  if (!changes_.too_few() && !changes_.away()) {
    outcomes_.too_few_since = Time::never();
    return timers_.stop({TimerKind::Quorum});
  }
  if (outcomes_.too_few_since == Time::never()) outcomes_.too_few_since = now;
  if (now >= outcomes_.too_few_since + config_.quorum_wait) return fail_too_few(now);  // later calls at once
  timers_.set({TimerKind::Quorum}, outcomes_.too_few_since + config_.quorum_wait);
}

/// Contributions to the operation from a quorum, in our view, are proof enough; else it must be heard lately.
bool Group::hears_quorum(Time now, const Operation& operation) const {
  if (!config_.elastic()) return true;
  if (changes_.away() || changes_.is_lost()) return false;
  RankMask begun = bit_of(config_.rank);
  for (Rank place = 0; place < operation.places(); ++place) {
    if (operation.begun_at(place) != Time::never()) begun |= bit_of(operation.rank_at(place));
  }
  return membership_.quorum(begun) || membership_.hears_quorum(now);
}

/// Who can be asked for the decisions of an owner that no longer serves the operation; 0: ask the owner.
RankMask Group::holders(const Operation& operation, Rank owner) const {
  if (!config_.elastic() || membership_.serves(owner, operation.number())) return 0;
  const RankMask holders = membership_.fate(operation.number(), owner, 0).holders;
  return (holders & membership_.others()) != 0 ? holders & membership_.others() : bit_of(config_.rank);
}

bool Group::in_same_view(const Header& header) const {
  return header.view == static_cast<std::uint16_t>(membership_.view().number);
}

void Group::send_view_messages(Time now) {
  static_cast<void>(now);
  Rank to = 0;
  ViewMessage message;
  while (changes_.poll_message(to, message)) {
    const std::uint64_t id = message_id(0, ++clock_.view_messages);
    for (std::vector<std::byte>& piece : cut_view_message(encode(message), id, config_.path.payload_bytes))
      controls_.push_back({.type = PacketType::View, .to = to, .payload = std::move(piece)});
  }
}

// ---- Leaving

void Group::prepare_to_leave(Time now) {
  if (!config_.elastic()) return;
  changes_.leave(now);
  follow_views(now);
}

bool Group::may_leave() const {
  if (!config_.elastic() || changes_.departed() || changes_.left_behind())
    return changes_.departed() || everyone_caught_up();
  RankMask gone = membership_.leaving();
  for (Rank rank = 0; rank < config_.size; ++rank) gone |= peers_[rank].left ? bit_of(rank) : 0;
  return everyone_caught_up() && (membership_.others() & ~gone) == 0;
}

void Group::say_goodbye(Time now) {
  constexpr int kGoodbyes = 3;  // nobody answers one: a peer that misses it waits for nothing
  const std::uint64_t completed = progress_.completed();
  std::vector<std::uint64_t> open;
  for (std::uint64_t number = completed; number < progress_.next_call(); ++number) open.push_back(number);
  clock_.says_completed = completed;  // peers must not take what fails here for complete
  for (std::uint64_t number : open) {
    if (number >= progress_.completed())
      fail(now, number, ErrorCode::Closed, "the group was closed before the operation was complete", {});
  }
  controls_.clear();
  repairs_ = {};
  for (int copy = 0; copy < kGoodbyes; ++copy) {
    for (Rank peer = 0; peer < config_.size; ++peer) {
      if (peer != config_.rank && !peers_[peer].left)
        controls_.push_back({.type = PacketType::Goodbye, .to = peer});
    }
  }
}

}  // namespace optireduce
