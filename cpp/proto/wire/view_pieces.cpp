// Messages longer than a packet travel in pieces: id (8 bytes), index (2), count (2), total length (4),
// bytes.
#include <algorithm>

#include "wire/view_bytes.h"
#include "wire/view_messages.h"

namespace optireduce {

namespace {

constexpr std::size_t kPieceHeader = 16;
constexpr std::size_t kLeastPieceBytes = 64;

/// All pieces but the last have the same length, so that the index says where a piece belongs.
std::size_t piece_length(std::size_t total, std::size_t count) {
  return (total + count - 1) / count;
}

}  // namespace

std::vector<std::vector<std::byte>> cut_view_message(std::span<const std::byte> message, std::uint64_t id,
                                                     std::size_t piece_bytes) {
  const std::size_t room = std::max(piece_bytes, kLeastPieceBytes) - kPieceHeader;
  const std::size_t count = std::max<std::size_t>((message.size() + room - 1) / room, 1);
  if (message.size() > kMaxViewMessageBytes || count > 0xffff) return {};
  const std::size_t length = piece_length(message.size(), count);
  std::vector<std::vector<std::byte>> pieces;
  for (std::size_t index = 0; index < count; ++index) {
    const std::size_t begin = std::min(index * length, message.size());
    bytes::Writer out;
    out.u64(id);
    out.u16(static_cast<std::uint16_t>(index));
    out.u16(static_cast<std::uint16_t>(count));
    out.u32(static_cast<std::uint32_t>(message.size()));
    out.raw(message.subspan(begin, std::min(length, message.size() - begin)));
    pieces.push_back(out.take());
  }
  return pieces;
}

std::optional<std::vector<std::byte>> PieceCollector::add(std::span<const std::byte> piece) {
  bytes::Reader in(piece, kMaskRanks);
  const std::uint64_t id = in.u64();
  const std::size_t index = in.u16(), count = in.u16(), total = in.u32();
  if (!in.ok() || index >= count || total > kMaxViewMessageBytes) return std::nullopt;
  const std::size_t length = piece_length(total, count);
  const std::size_t begin = std::min(index * length, total);
  if (in.rest().size() != std::min(length, total - begin)) return std::nullopt;
  if (count == 1) return std::vector<std::byte>(in.rest().begin(), in.rest().end());
  if (!id_ || id > *id_) begin_message(id, count, total);
  if (id != *id_ || missing_ == 0 || present_.size() != count || bytes_.size() != total || present_[index])
    return std::nullopt;
  std::copy(in.rest().begin(), in.rest().end(), bytes_.begin() + static_cast<std::ptrdiff_t>(begin));
  present_[index] = true;
  if (--missing_ != 0) return std::nullopt;
  return std::move(bytes_);
}

void PieceCollector::begin_message(std::uint64_t id, std::size_t count, std::size_t total_bytes) {
  id_ = id;
  missing_ = count;
  present_.assign(count, false);
  bytes_.assign(total_bytes, std::byte{0});
}

}  // namespace optireduce
