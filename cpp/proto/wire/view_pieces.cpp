// Messages longer than a packet travel in pieces, each with a header.
#include <algorithm>

#include "wire/view_codec.h"
#include "wire/view_messages.h"

namespace optireduce {

namespace {

constexpr std::size_t kPieceHeader = 16;
constexpr std::size_t kLeastPieceBytes = 64;

/// All pieces but the last have the same length, so that the index says where a piece belongs.
struct Place {
  std::size_t begin, length;

  Place(std::size_t index, std::size_t count, std::size_t total) {
    const std::size_t most = (total + count - 1) / count;
    begin = std::min(index * most, total);
    length = std::min(most, total - begin);
  }
};

}  // namespace

std::vector<std::vector<std::byte>> cut_view_message(std::span<const std::byte> message, std::uint64_t id,
                                                     std::size_t piece_bytes) {
  const std::size_t room = std::max(piece_bytes, kLeastPieceBytes) - kPieceHeader;
  const std::size_t count = std::max<std::size_t>((message.size() + room - 1) / room, 1);
  if (message.size() > kMaxViewMessageBytes || count > 0xffff) return {};
  std::vector<std::vector<std::byte>> pieces;
  for (std::size_t index = 0; index < count; ++index) {
    const Place place(index, count, message.size());
    Writer out;
    out.all(id, static_cast<std::uint16_t>(index), static_cast<std::uint16_t>(count),
            static_cast<std::uint32_t>(message.size()));
    out.raw(message.subspan(place.begin, place.length));
    pieces.push_back(out.take());
  }
  return pieces;
}

std::optional<std::vector<std::byte>> PieceCollector::add(std::span<const std::byte> piece) {
  Reader in(piece, kMaskRanks);
  const auto id = in.number<std::uint64_t>();
  const std::size_t index = in.number<std::uint16_t>(), count = in.number<std::uint16_t>();
  const std::size_t total = in.number<std::uint32_t>();
  if (!in.ok() || index >= count || total > kMaxViewMessageBytes) return std::nullopt;
  const Place place(index, count, total);
  if (in.rest().size() != place.length) return std::nullopt;
  if (count == 1) return std::vector<std::byte>(in.rest().begin(), in.rest().end());
  if (!id_ || id > *id_) {
    id_ = id;
    missing_ = count;
    present_.assign(count, false);
    bytes_.assign(total, std::byte{0});
  }
  if (id != *id_ || missing_ == 0 || present_.size() != count || bytes_.size() != total || present_[index])
    return std::nullopt;
  std::ranges::copy(in.rest(), bytes_.begin() + static_cast<std::ptrdiff_t>(place.begin));
  present_[index] = true;
  if (--missing_ != 0) return std::nullopt;
  return std::move(bytes_);
}

}  // namespace optireduce
