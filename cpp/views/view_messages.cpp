#include "views/view_messages.h"

#include <algorithm>
#include <functional>
#include <string_view>
#include <utility>

#include "base/codec.h"

namespace optireduce {

namespace {

constexpr std::size_t kPieceHeader = 16;
constexpr std::size_t kLeastPieceBytes = 64;

/// All pieces but the last have the same length, so that the index says where a piece belongs.
struct PiecePlace {
  std::size_t begin, length;

  PiecePlace(std::size_t index, std::size_t count, std::size_t total) {
    const std::size_t most = (total + count - 1) / count;
    begin = std::min(index * most, total);
    length = std::min(most, total - begin);
  }
};

/// Makes the body whose place in the variant is `type`. False: there is none.
template <std::size_t... Place>
bool make_body(ViewMessage::Body& body, std::size_t type, std::index_sequence<Place...>) {
  return ((type == Place && (body.emplace<Place>(), true)) || ...);
}

}  // namespace

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

std::vector<std::vector<std::byte>> cut_view_message(std::span<const std::byte> message, std::uint64_t id,
                                                     std::size_t piece_bytes) {
  const std::size_t room = std::max(piece_bytes, kLeastPieceBytes) - kPieceHeader;
  const std::size_t count = std::max<std::size_t>((message.size() + room - 1) / room, 1);
  if (message.size() > kMaxViewMessageBytes || count > 0xffff) return {};
  std::vector<std::vector<std::byte>> pieces;
  for (std::size_t index = 0; index < count; ++index) {
    const PiecePlace place(index, count, message.size());
    Writer out;
    out.all(id, static_cast<std::uint16_t>(index), static_cast<std::uint16_t>(count),
            static_cast<std::uint32_t>(message.size()));
    out.raw(message.subspan(place.begin, place.length));
    pieces.push_back(out.take());
  }
  return pieces;
}

std::vector<std::vector<std::byte>> PieceCutter::cut(const ViewMessage& message, std::size_t piece_bytes) {
  const std::vector<std::byte> bytes = encode(message);
  if (bytes.size() + kPieceHeader > piece_bytes) {
    // All but the number of completed operations, which may rise from repeat to repeat: it is whole in the
    // first piece.
    ViewMessage same = message;
    same.completed = 0;
    const std::vector<std::byte> text = encode(same);
    const std::size_t hash =
        std::hash<std::string_view>()({reinterpret_cast<const char*>(text.data()), text.size()});
    const bool repeated = hash == std::exchange(last_, hash);
    repeats_ = repeated ? repeats_ + 1 : 0;
    sequence_ += repeated ? 0 : 1;
  }
  auto pieces = cut_view_message(bytes, message_id(0, sequence_), piece_bytes);
  // A full buffer loses the end of a burst: each repeat begins with other pieces.
  const std::size_t begin = pieces.empty() ? 0 : repeats_ * (pieces.size() / 8 + 1) % pieces.size();
  std::rotate(pieces.begin(), pieces.begin() + static_cast<std::ptrdiff_t>(begin), pieces.end());
  return pieces;
}

std::optional<std::vector<std::byte>> PieceCollector::add(std::span<const std::byte> piece) {
  Reader in(piece, kMaskRanks);
  const auto id = in.number<std::uint64_t>();
  const std::size_t index = in.number<std::uint16_t>(), count = in.number<std::uint16_t>();
  const std::size_t total = in.number<std::uint32_t>();
  refused_ = !in.ok() || index >= count || total > kMaxViewMessageBytes;
  if (refused_) return std::nullopt;
  const PiecePlace place(index, count, total);
  refused_ = in.rest().size() != place.length;
  if (refused_) return std::nullopt;
  if (count == 1) return std::vector<std::byte>(in.rest().begin(), in.rest().end());
  if (!id_ || id > *id_ || (id == *id_ && missing_ == 0)) {
    id_ = id;
    missing_ = count;
    present_.assign(count, false);
    bytes_.assign(total, std::byte{0});
  }
  if (id != *id_ || present_.size() != count || bytes_.size() != total || present_[index])
    return std::nullopt;
  std::ranges::copy(in.rest(), bytes_.begin() + static_cast<std::ptrdiff_t>(place.begin));
  present_[index] = true;
  if (--missing_ != 0) return std::nullopt;
  return std::move(bytes_);
}

}  // namespace optireduce
