#include "wire/view_messages.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "wire/view_codec.h"

namespace optireduce {

// The wire format: each message's fields in their order. Found by the codecs through their argument types.

static void fields(auto& codec, auto& pair)
  requires requires { pair.second; }
{
  codec.all(pair.first, pair.second);
}

static void fields(auto& codec, MaybeConst<Ballot> auto& ballot) {
  codec.all(ballot.round, ballot.rank);
}

static void fields(auto& codec, MaybeConst<JoinRequest> auto& request) {
  codec.all(request.incarnation, request.known, request.completed, request.digest);
}

static void fields(auto& codec, MaybeConst<RankRecord> auto& record) {
  codec.all(record.since, record.changed_at, record.incarnation, record.completed, record.digest);
}

static void fields(auto& codec, MaybeConst<OrphanShard> auto& shard) {
  codec.all(shard.operation, shard.owner, shard.rest_gone);
  codec.mask(shard.holders);
  codec.words(shard.passed);
  codec.words(shard.gone);
}

static bool in_order(const View& view) {
  const auto not_before = [](const OrphanShard& a, const OrphanShard& b) {
    return std::pair(a.operation, a.owner) >= std::pair(b.operation, b.owner);
  };
  return std::ranges::adjacent_find(view.orphans, not_before) == view.orphans.end() &&
         std::ranges::adjacent_find(view.failed, std::greater_equal()) == view.failed.end();
}

static void fields(auto& codec, MaybeConst<View> auto& view) {
  codec.all(view.number);
  codec.mask(view.members);
  codec.mask(view.joined);
  codec.mask(view.removed);
  codec.all(view.cut, view.base, view.stable, view.first, view.ranks, view.orphans, view.failed);
  codec.require(codec.fits_group(view.ranks.size()) && view.members != 0 && view.first <= view.cut);
  codec.require((view.joined & ~view.members) == 0 && in_order(view));
}

static void fields(auto& codec, MaybeConst<HeldShard> auto& shard) {
  codec.all(shard.operation, shard.owner, shard.packets);
  codec.words(shard.held);
  codec.words(shard.kept);
}

static void fields(auto& codec, MaybeConst<OpenOperation> auto& open) {
  codec.all(open.operation, open.exact, open.own_shard_decided);
}

static void fields(auto& codec, MaybeConst<Propose> auto& propose) {
  codec.all(propose.ballot);
  codec.mask(propose.without);
  codec.all(propose.joiners);
}

static void fields(auto& codec, MaybeConst<State> auto& state) {
  codec.all(state.ballot, state.adopted_ballot, state.adopted, state.completed, state.floor, state.reach_end);
  codec.all(state.held, state.open, state.verdicts);
}

static void fields(auto& codec, MaybeConst<Adopt> auto& adopt) {
  codec.all(adopt.ballot, adopt.view);
}

static void fields(auto& codec, MaybeConst<Adopted> auto& adopted) {
  codec.all(adopted.ballot);
}

static void fields(auto& codec, MaybeConst<Install> auto& install) {
  const auto not_next = [](const View& older, const View& newer) {
    return older.number + 1 != newer.number || older.cut > newer.cut;
  };
  codec.all(install.views);
  codec.require(!install.views.empty());
  codec.require(std::ranges::adjacent_find(install.views, not_next) == install.views.end());
}

static void fields(auto&, MaybeConst<Query> auto&) {}

static void fields(auto& codec, MaybeConst<Join> auto& join) {
  codec.all(join.request);
}

static void fields(auto& codec, MaybeConst<JoinAnswer> auto& answer) {
  codec.all(answer.request, answer.verdict);
}

static void fields(auto& codec, MaybeConst<Status> auto& status) {
  codec.mask(status.hears);
  codec.all(status.leaving, status.lost, status.asks, status.round);
}

/// Makes the body whose place in the variant is `type`. False: there is none.
template <std::size_t... Place>
static bool make_body(ViewMessage::Body& body, std::size_t type, std::index_sequence<Place...>) {
  return ((type == Place && (body.emplace<Place>(), true)) || ...);
}

std::vector<std::byte> encode(const ViewMessage& message) {
  Writer out;
  out.all(static_cast<std::uint8_t>(message.body.index()), message.incarnation, message.view,
          message.completed);
  std::visit([&](const auto& body) { out.all(body); }, message.body);
  return out.take();
}

std::optional<ViewMessage> decode_view_message(std::span<const std::byte> encoded, std::size_t size) {
  if (size == 0 || size > kMaskRanks || encoded.size() > kMaxViewMessageBytes) return std::nullopt;
  Reader in(encoded, size);
  ViewMessage message;
  std::uint8_t type = 0;
  in.all(type, message.incarnation, message.view, message.completed);
  constexpr auto kPlaces = std::make_index_sequence<std::variant_size_v<ViewMessage::Body>>();
  if (!make_body(message.body, type, kPlaces)) return std::nullopt;
  std::visit([&](auto& body) { in.all(body); }, message.body);
  if (!in.ok() || !in.rest().empty()) return std::nullopt;
  return message;
}

}  // namespace optireduce
