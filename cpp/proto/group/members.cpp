#include "group/members.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <variant>

namespace optireduce {
namespace {

/// A busy machine does not run a process for 100 ms at a time: such a rank must not be removed.
constexpr Duration kLeastSilence = Duration::millis(200);

MembershipConfig membership_config(const GroupConfig& config) {
  return {.rank = config.rank, .silence = {.least = kLeastSilence, .exact = config.exact_silence}};
}

// ---- What the view change asks

/// The first operation from which on we could send our own decisions to a rank that returns.
std::uint64_t floor_of(const Core& core) {
  std::uint64_t first = core.progress.completed();
  const Operations::Range log = core.operations.log();
  for (auto newest = log.end(); newest != log.begin(); --first) {
    --newest;
    if (newest->first + 1 != first || !newest->second->exchange().keeps_own()) break;
  }
  return first;
}

/// Of a rank that is further behind the others would have to wait for steps that they have long made.
bool is_near(const Core& core, std::uint64_t completed) {
  const Progress& progress = core.progress;
  return progress.step_of(completed) + core.config.max_lag >= progress.step_of(progress.completed());
}

std::vector<OpenOperation> open_in(const Core& core) {
  std::vector<OpenOperation> open;
  for (const auto& [number, operation] : core.operations.open()) {
    const bool decided = operation->scatter().undecided_packets() == 0;
    open.push_back({number, !operation->descriptor().bounded, decided});
  }
  return open;
}

/// `owner` owns a shard of the operation.
HeldShard held_shard(const Operation& operation, Rank owner) {
  const Rank place = operation.place_of(owner);
  const Shard& shard = operation.gather().shard(place);
  const Exchange& exchange = operation.exchange();
  HeldShard held{.operation = operation.number(), .owner = owner, .packets = shard.packets(), .held = {}};
  for (std::uint32_t chunk = 0; exchange.keeps(place) && chunk < shard.chunks(); ++chunk)
    held.held.push_back(operation.finished() ? shard.full_mask(chunk) : exchange.held(place, chunk));
  return held;
}

std::vector<HeldShard> held_in(const Core& core, std::uint64_t number, RankMask owners) {
  const Operation* const operation = core.operations.find(number);
  std::vector<HeldShard> shards;
  if (operation == nullptr) return shards;
  for_each_rank(owners, [&](Rank rank) {
    if (operation->place_of(rank) != kNoPlace) shards.push_back(held_shard(*operation, rank));
  });
  return shards;
}

Journal journal_of(const Core& core) {
  const Progress& progress = core.progress;
  return {
      .completed = [&progress] { return progress.told(); },
      .floor = [&core] { return floor_of(core); },
      .near = [&core](std::uint64_t completed) { return is_near(core, completed); },
      .touched_end = [&progress] { return std::max(progress.touched_end(), progress.completed()); },
      .digest = [&progress](std::uint64_t operation) { return progress.digest(operation); },
      .open = [&core] { return open_in(core); },
      .held = [&core](std::uint64_t operation, RankMask owners) { return held_in(core, operation, owners); }};
}

}  // namespace

Members::Members(Core& core)
    : membership(membership_config(core.config), View::initial(core.config.size)),
      changes({.incarnation = core.config.elastic() ? core.config.incarnation : 0,
               .min_ranks = core.config.min_ranks},
              membership, journal_of(core)),
      core_(core),
      pieces_(core.config.size),
      cutters_(core.config.size) {
  set_timer();  // a restarted process asks to come in
}

std::vector<Rank> Members::owners(std::uint64_t operation) const {
  if (core_.config.elastic()) return membership.owners(operation);
  std::vector<Rank> everybody(core_.config.size);
  std::iota(everybody.begin(), everybody.end(), Rank{0});
  return everybody;
}

std::uint64_t Members::least_completed() const {
  std::uint64_t least = core_.progress.completed();
  for (const Peer& peer : core_.peers) {
    const bool awaited = peer.present() && view().contains(peer.rank) && !has(membership.lost(), peer.rank);
    if (awaited) least = std::min(least, peer.completed);
  }
  return least;
}

bool Members::may_be_first(std::uint64_t number) const {
  bool may = true;
  for_each_rank(membership.leaving() & membership.others(),
                [&](Rank rank) { may &= number < membership.completed(rank); });
  return may;
}

Time Members::heard_at() const {
  Time latest;
  for_each_rank(membership.others(), [&](Rank rank) {
    if (core_.peers[rank].heard) latest = std::max(latest, core_.peers[rank].newest_at);
  });
  return latest;
}

bool Members::heard(Time now, const Header& header) {
  if (!counts(header)) return false;
  membership.silence().heard(now, header.sender);
  if ((header.flags & kFlagHearsAll) != 0) membership.told_hearing(now, header.sender, view().members);
  if (answered_ == kEverybody) return false;
  if ((header.flags & kFlagEcho) != 0 && not_before(header.echo, first_since_))
    answered_ |= bit_of(header.sender);
  if (!membership.quorum(answered_)) return false;
  answered_ = kEverybody;
  return true;
}

void Members::stood_still(Time now, Duration how_long) {
  membership.silence().restart(now);
  if (!core_.config.elastic() || how_long < kLeastSilence / 2) return;  // nobody was removed for less
  first_since_ = static_cast<std::uint32_t>(std::max(now.ns / 1000, core_.last_timestamp + 1));
  answered_ = bit_of(core_.config.rank);
  ask_unanswered();
}

void Members::ask_unanswered() {
  if (may_hand_over()) return;
  for_each_rank(unanswered(), [&](Rank rank) { core_.tell(PacketType::Ping, rank); });
}

void Members::note_other_view(Time now, const Header& header) {
  const auto distance = static_cast<std::int16_t>(header.view - static_cast<std::uint16_t>(view().number));
  const std::int64_t number = static_cast<std::int64_t>(view().number) + distance;
  if (number >= 0) changes.saw_view(now, header.sender, static_cast<std::uint64_t>(number));
}

void Members::handle_piece(Time now, const ReceivedRun& run) {
  const Rank from = run.header.sender;
  if (core_.config.elastic()) {
    const auto whole = pieces_[from].add(std::span(run.payload(0), run.header.length));
    if (!whole && !pieces_[from].refused()) return;
    if (const auto message = whole ? decode_view_message(*whole, core_.config.size) : std::nullopt) {
      // Whoever asks to come in wants to know how far we are.
      if (std::holds_alternative<Join>(message->body)) core_.tell(PacketType::Status, from);
      return changes.handle(now, from, *message);
    }
  }
  ++core_.stats.malformed_packets;
}

void Members::send_messages() {
  Rank to = 0;
  ViewMessage message;
  while (changes.poll_message(to, message)) {
    auto pieces = cutters_[to].cut(message, core_.config.path.payload_bytes);
    if (pieces.empty()) ++core_.stats.oversized_view_messages;
    for (auto& piece : pieces)
      core_.controls.push_back({.type = PacketType::View, .to = to, .payload = std::move(piece)});
  }
}

void Members::look_for_silence(Time now) {
  if (!core_.config.elastic()) return;
  Silence& silence = membership.silence();
  silence.set_owing_data(now, core_.idle() ? 0 : membership.others());
  silence.set_exact_open(std::ranges::any_of(core_.operations.open(), [](const auto& entry) {
    return !entry.second->descriptor().bounded && entry.second->begun();
  }));
  for_each_rank(silence.take_pings(now) & membership.others(),
                [&](Rank rank) { core_.tell(PacketType::Ping, rank); });
  hears_all_ = membership.hears() == view().members;
  silence.update(now);
  const RankMask suspects = membership.suspected();
  core_.stats.suspicions += static_cast<std::uint64_t>(count_of(suspects & ~suspects_));
  suspects_ = suspects;
  if (suspects != 0) set_pace();
  if (suspects != 0 || membership.leaving() != 0) changes.handle_timeout(now);
  set_timer();
}

/// How fast a change may go: the slowest round trip to a member.
void Members::set_pace() {
  Duration round;
  for_each_rank(membership.others(),
                [&](Rank rank) { round = std::max(round, core_.peers[rank].rtt.repair_timeout()); });
  changes.set_pace(round);
}

void Members::handle_timeout(Time now) {
  fired_at_ = now;
  look_for_silence(now);
  changes.handle_timeout(now);
  set_timer();
}

void Members::set_timer() {
  constexpr Duration kLeast = Duration::micros(100);  // of a rank that has just acted
  const Time next = changes.poll_timeout();
  core_.timers.set({TimerKind::View}, next == Time::never() ? next : std::max(next, fired_at_ + kLeast));
}

/// What is collected must not grow behind the proposer's back while the view changes.
bool Members::may_accept(const Operation& operation, const ReceivedRun& run) const {
  const Rank from = run.header.sender;
  if (halted() || !view().contains(from) || operation.number() >= reach_end()) return false;
  if (run.header.type == PacketType::Decision) {
    const Rank owner = operation.rank_at(operation.gather().owner(run.header.shard));
    return !has(changes.deaf(), from) && !has(changes.deaf(), owner);  // a relay may have them too
  }
  const bool waits = !operation.descriptor().bounded && changes.changing();
  return membership.serves(from, operation.number()) && !waits;
}

bool Members::hears_quorum(Time now, const Operation& operation) const {
  if (!core_.config.elastic()) return true;
  if (halted()) return false;
  RankMask begun = bit_of(core_.config.rank);
  for (Rank place = 0; place < operation.places(); ++place) {
    if (operation.begun_at(place) != Time::never()) begun |= bit_of(operation.rank_at(place));
  }
  return membership.quorum(begun) || membership.hears_quorum(now);
}

RankMask Members::holders(const Operation& operation, Rank owner) const {
  if (changes.standing().away) return membership.others();
  if (!core_.config.elastic() || membership.serves(owner, operation.number())) return bit_of(owner);
  return membership.fate(operation.number(), owner, 0).holders & membership.others();
}

std::vector<Rank> Members::orphans_of(const Operation& operation) const {
  std::vector<Rank> orphans;
  for (Rank rank : operation.setup().members) {
    if (!membership.serves(rank, operation.number())) orphans.push_back(rank);
  }
  return orphans;
}

void Members::apply_fates(Time now, Operation& operation) {
  if (changes.standing().away) return;  // all members have settled what a learner completes: it asks them
  for (const Rank rank : orphans_of(operation)) {
    operation.exchange().remove_member(rank);
    const Rank place = operation.place_of(rank);
    const Shard& shard = operation.gather().shard(place);
    for (std::uint32_t chunk = 0; chunk < shard.chunks(); ++chunk) {
      const ChunkFate fate = membership.fate(operation.number(), rank, chunk);
      operation.make_void(rank, chunk, fate.voided, core_.residuals);
      const std::uint64_t lacking = shard.full_mask(chunk) & ~operation.gather().inbox(place).received(chunk);
      if ((fate.gone & lacking) != 0) return changes.mark_lost(now);
    }
  }
}

}  // namespace optireduce
