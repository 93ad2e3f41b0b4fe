#include "wire/view_messages.h"

#include "wire/view_bytes.h"

namespace optireduce {

namespace {

using bytes::Reader;
using bytes::Writer;

// Far above what max_lag leaves unfinished; what a peer claims must not cost more memory than this.
constexpr std::size_t kMostEntries = 1 << 16;
constexpr std::size_t kMostWords = 1 << 17;

void put(Writer& out, const Ballot& ballot) {
  out.u32(ballot.round);
  out.u16(ballot.rank);
}

void get(Reader& in, Ballot& ballot) {
  ballot.round = in.u32();
  ballot.rank = in.rank();
}

void put(Writer& out, const JoinRequest& request) {
  out.u32(request.incarnation);
  out.u64(request.known);
  out.u64(request.completed);
  out.u64(request.digest);
}

void get(Reader& in, JoinRequest& request) {
  request.incarnation = in.u32();
  request.known = in.u64();
  request.completed = in.u64();
  request.digest = in.u64();
}

// Equal words in a row are written once: shards are mostly held as a whole or not at all.
void put_words(Writer& out, const std::vector<std::uint64_t>& words) {
  out.u32(static_cast<std::uint32_t>(words.size()));
  for (std::size_t i = 0; i < words.size();) {
    std::size_t end = i + 1;
    while (end < words.size() && words[end] == words[i]) ++end;
    out.u32(static_cast<std::uint32_t>(end - i));
    out.u64(words[i]);
    i = end;
  }
}

void get_words(Reader& in, std::vector<std::uint64_t>& words) {
  const std::size_t count = in.words(kMostWords);
  while (in.ok() && words.size() < count) {
    const std::uint32_t run = in.u32();
    const std::uint64_t word = in.u64();
    if (run == 0 || run > count - words.size()) return in.refuse();
    if (in.ok()) words.insert(words.end(), run, word);
  }
}

template <typename Entry, typename Put>
void put_list(Writer& out, const std::vector<Entry>& list, Put&& put_entry) {
  out.u32(static_cast<std::uint32_t>(list.size()));
  for (const Entry& entry : list) put_entry(entry);
}

template <typename Entry, typename Get>
void get_list(Reader& in, std::vector<Entry>& list, std::size_t entry_bytes, Get&& get_entry) {
  const std::size_t count = in.count(entry_bytes, kMostEntries);
  for (std::size_t i = 0; i < count && in.ok(); ++i) get_entry(list.emplace_back());
}

void put(Writer& out, const RankRecord& record) {
  out.u64(record.since);
  out.u64(record.changed_at);
  out.u32(record.incarnation);
  out.u64(record.completed);
  out.u64(record.digest);
}

void get(Reader& in, RankRecord& record) {
  record.since = in.u64();
  record.changed_at = in.u64();
  record.incarnation = in.u32();
  record.completed = in.u64();
  record.digest = in.u64();
}

void put(Writer& out, const OrphanShard& shard) {
  out.u64(shard.operation);
  out.u16(shard.owner);
  out.flag(shard.rest_gone);
  out.u64(shard.holders);
  put_words(out, shard.passed);
  put_words(out, shard.gone);
}

void get(Reader& in, OrphanShard& shard) {
  shard.operation = in.u64();
  shard.owner = in.rank();
  shard.rest_gone = in.flag();
  shard.holders = in.mask();
  get_words(in, shard.passed);
  get_words(in, shard.gone);
}

void put(Writer& out, const View& view) {
  for (std::uint64_t value :
       {view.number, view.members, view.joined, view.removed, view.cut, view.base, view.stable, view.first}) {
    out.u64(value);
  }
  put_list(out, view.ranks, [&](const RankRecord& record) { put(out, record); });
  put_list(out, view.orphans, [&](const OrphanShard& shard) { put(out, shard); });
  put_list(out, view.failed, [&](std::uint64_t operation) { out.u64(operation); });
}

bool in_order(const View& view) {
  for (std::size_t i = 1; i < view.orphans.size(); ++i) {
    const OrphanShard &a = view.orphans[i - 1], &b = view.orphans[i];
    if (std::pair(a.operation, a.owner) >= std::pair(b.operation, b.owner)) return false;
  }
  for (std::size_t i = 1; i < view.failed.size(); ++i) {
    if (view.failed[i - 1] >= view.failed[i]) return false;
  }
  return true;
}

void get(Reader& in, View& view) {
  view.number = in.u64();
  view.members = in.mask();
  view.joined = in.mask();
  view.removed = in.mask();
  for (std::uint64_t* value : {&view.cut, &view.base, &view.stable, &view.first}) *value = in.u64();
  get_list(in, view.ranks, 36, [&](RankRecord& record) { get(in, record); });
  get_list(in, view.orphans, 27, [&](OrphanShard& shard) { get(in, shard); });
  get_list(in, view.failed, 8, [&](std::uint64_t& operation) { operation = in.u64(); });
  const bool sound = view.ranks.size() == in.size() && view.members != 0 && view.first <= view.cut &&
                     (view.joined & ~view.members) == 0 && in_order(view);
  if (!sound) in.refuse();
}

void put(Writer& out, const HeldShard& shard) {
  out.u64(shard.operation);
  out.u16(shard.owner);
  out.u32(shard.packets);
  put_words(out, shard.held);
  put_words(out, shard.kept);
}

void get(Reader& in, HeldShard& shard) {
  shard.operation = in.u64();
  shard.owner = in.rank();
  shard.packets = in.u32();
  get_words(in, shard.held);
  get_words(in, shard.kept);
}

void put(Writer& out, const Propose& propose) {
  put(out, propose.ballot);
  out.u64(propose.without);
  put_list(out, propose.joiners, [&](const auto& joiner) {
    out.u16(joiner.first);
    put(out, joiner.second);
  });
}

void get(Reader& in, Propose& propose) {
  get(in, propose.ballot);
  propose.without = in.mask();
  get_list(in, propose.joiners, 30, [&](auto& joiner) {
    joiner.first = in.rank();
    get(in, joiner.second);
  });
}

void put(Writer& out, const State& state) {
  put(out, state.ballot);
  put(out, state.adopted_ballot);
  out.flag(state.adopted.has_value());
  if (state.adopted) put(out, *state.adopted);
  out.u64(state.completed);
  out.u64(state.floor);
  out.u64(state.reach_end);
  put_list(out, state.held, [&](const HeldShard& shard) { put(out, shard); });
  put_list(out, state.open, [&](const OpenOperation& open) {
    out.u64(open.operation);
    out.flag(open.exact);
    out.flag(open.own_shard_decided);
  });
  put_list(out, state.verdicts, [&](const auto& verdict) {
    out.u16(verdict.first);
    out.u8(static_cast<std::uint8_t>(verdict.second));
  });
}

void get(Reader& in, State& state) {
  get(in, state.ballot);
  get(in, state.adopted_ballot);
  if (in.flag()) get(in, state.adopted.emplace());
  state.completed = in.u64();
  state.floor = in.u64();
  state.reach_end = in.u64();
  get_list(in, state.held, 22, [&](HeldShard& shard) { get(in, shard); });
  get_list(in, state.open, 10, [&](OpenOperation& open) {
    open.operation = in.u64();
    open.exact = in.flag();
    open.own_shard_decided = in.flag();
  });
  get_list(in, state.verdicts, 3, [&](auto& verdict) {
    verdict.first = in.rank();
    verdict.second = static_cast<Verdict>(in.up_to(static_cast<std::uint8_t>(Verdict::Snapshot)));
  });
}

void put(Writer& out, const Adopt& adopt) {
  put(out, adopt.ballot);
  put(out, adopt.view);
}

void get(Reader& in, Adopt& adopt) {
  get(in, adopt.ballot);
  get(in, adopt.view);
}

void put(Writer& out, const Adopted& adopted) {
  put(out, adopted.ballot);
}
void get(Reader& in, Adopted& adopted) {
  get(in, adopted.ballot);
}

void put(Writer& out, const Install& install) {
  put_list(out, install.views, [&](const View& view) { put(out, view); });
}

void get(Reader& in, Install& install) {
  get_list(in, install.views, 76, [&](View& view) { get(in, view); });
  for (std::size_t i = 1; i < install.views.size(); ++i) {
    const View &older = install.views[i - 1], &newer = install.views[i];
    if (older.number + 1 != newer.number || older.cut > newer.cut) in.refuse();
  }
  if (install.views.empty()) in.refuse();
}

void put(Writer&, const Query&) {}
void get(Reader&, Query&) {}

void put(Writer& out, const Join& join) {
  put(out, join.request);
}
void get(Reader& in, Join& join) {
  get(in, join.request);
}

void put(Writer& out, const JoinAnswer& answer) {
  put(out, answer.request);
  out.u8(static_cast<std::uint8_t>(answer.verdict));
}

void get(Reader& in, JoinAnswer& answer) {
  get(in, answer.request);
  answer.verdict = static_cast<Verdict>(in.up_to(static_cast<std::uint8_t>(Verdict::Snapshot)));
}

void put(Writer& out, const Status& status) {
  out.u64(status.hears);
  out.flag(status.leaving);
  out.flag(status.lost);
  out.flag(status.asks);
  out.u32(status.round);
}

void get(Reader& in, Status& status) {
  status.hears = in.mask();
  status.leaving = in.flag();
  status.lost = in.flag();
  status.asks = in.flag();
  status.round = in.u32();
}

/// The body whose place in the variant is `type`.
template <std::size_t Index = 0>
void get_body(Reader& in, std::size_t type, ViewMessage::Body& body) {
  if constexpr (Index == std::variant_size_v<ViewMessage::Body>) {
    in.refuse();
  } else if (type == Index) {
    get(in, body.emplace<Index>());
  } else {
    get_body<Index + 1>(in, type, body);
  }
}

}  // namespace

std::vector<std::byte> encode(const ViewMessage& message) {
  Writer out;
  out.u8(static_cast<std::uint8_t>(message.body.index()));
  out.u32(message.incarnation);
  out.u64(message.view);
  out.u64(message.completed);
  std::visit([&](const auto& body) { put(out, body); }, message.body);
  return out.take();
}

std::optional<ViewMessage> decode_view_message(std::span<const std::byte> encoded, std::size_t size) {
  if (size == 0 || size > kMaskRanks || encoded.size() > kMaxViewMessageBytes) return std::nullopt;
  Reader in(encoded, size);
  ViewMessage message;
  const std::size_t type = in.u8();
  message.incarnation = in.u32();
  message.view = in.u64();
  message.completed = in.u64();
  get_body(in, type, message.body);
  if (!in.ok() || !in.at_end()) return std::nullopt;
  return message;
}

}  // namespace optireduce
