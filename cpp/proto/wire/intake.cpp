#include "wire/intake.h"

#include <utility>

namespace optireduce {
namespace {

bool is_data(PacketType type) {
  return type == PacketType::Contribution || type == PacketType::Decision;
}

}  // namespace

void Intake::open(const Datagram& datagram) {
  const std::span packets(datagram.buffer.data() + datagram.begin, datagram.bytes - datagram.begin);
  seal_.open_all(packets, datagram.stride(), genuine_);
}

std::optional<ReceivedRun> Intake::next(const Datagram& datagram, std::uint32_t& at, HeaderError& why) const {
  const std::uint32_t stride = datagram.stride();
  const auto packet_at = [&](std::uint32_t where) {
    return std::span<const std::byte>(datagram.buffer.data() + where,
                                      std::min(stride, datagram.bytes - where));
  };
  const auto is_genuine = [&](std::uint32_t where) { return genuine_[(where - datagram.begin) / stride]; };
  const std::uint32_t begin = std::exchange(at, at + stride);
  const auto [header, error] = decode_opened(packet_at(begin), is_genuine(begin), size_);
  if (!header || header->sender != datagram.from || header->sender == self_) {
    why = header ? HeaderError::BadSender : error;
    return std::nullopt;
  }
  ReceivedRun run{*header, 0, datagram.buffer, begin, stride, 1, header->length, {}};
  while (is_data(run.header.type) && at < datagram.bytes && run.last_length == run.header.length &&
         is_genuine(at)) {
    const std::span<const std::byte> next = packet_at(at);
    if (!continues(packet_at(begin), next, run.header.offset + run.packets * run.header.length)) break;
    run.last_length = static_cast<std::uint32_t>(next.size() - kHeaderBytes);
    ++run.packets;
    at += stride;
  }
  return run;
}

}  // namespace optireduce
