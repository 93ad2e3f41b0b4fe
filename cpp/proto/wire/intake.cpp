#include "wire/intake.h"

#include <utility>

namespace optireduce {

void Intake::open(const Datagram& datagram) {
  const std::span packets(datagram.buffer.data() + datagram.begin, datagram.bytes - datagram.begin);
  seal_.open_all(packets, datagram.stride(), genuine_);
}

std::optional<ReceivedRun> Intake::next(const Datagram& datagram, std::uint32_t& at, bool& forged) const {
  const std::uint32_t stride = datagram.stride();
  const auto packet_at = [&](std::uint32_t where) {
    return std::span<const std::byte>(datagram.buffer.data() + where,
                                      std::min(stride, datagram.bytes - where));
  };
  const auto is_genuine = [&](std::uint32_t where) { return genuine_[(where - datagram.begin) / stride]; };
  const std::uint32_t begin = std::exchange(at, at + stride);
  forged = !is_genuine(begin) && packet_at(begin).size() >= kHeaderBytes;
  if (!is_genuine(begin)) return std::nullopt;
  const std::optional<Header> header = decode(packet_at(begin), size_);
  if (!header || header->sender != datagram.from || header->sender == self_) return std::nullopt;
  ReceivedRun run{*header, 0, datagram.buffer, begin, stride, 1, header->length, {}};
  while (is_data(run.header.type) && at < datagram.bytes && run.last_length == run.header.length &&
         is_genuine(at)) {
    const std::span<const std::byte> next = packet_at(at);
    if (!continues(run.header, next, run.header.offset + run.packets * run.header.length)) break;
    run.last_length = static_cast<std::uint32_t>(next.size() - kHeaderBytes);
    ++run.packets;
    at += stride;
  }
  return run;
}

}  // namespace optireduce
