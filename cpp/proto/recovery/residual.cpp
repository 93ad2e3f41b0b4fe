#include "recovery/residual.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/finite.h"
#include "kernels/reduce.h"

namespace optireduce {
namespace {

bool is_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte value) { return value == std::byte{0}; });
}

}  // namespace

bool Residuals::any(std::uint32_t stream) const {
  const auto found = streams_.find(stream);
  return found != streams_.end() && found->second.any;
}

bool Residuals::any() const {
  return std::ranges::any_of(streams_, [](const auto& entry) { return entry.second.any; });
}

Residuals::Stream& Residuals::stream_of(const ValueSpace& space) {
  Stream& stream = streams_[space.stream];
  if (stream.values.size() != space.bytes || stream.type != space.type) {
    if (stream.any) dropped_bytes_ += stream.values.size();
    const std::size_t blocks = (space.bytes + kBlockBytes - 1) / kBlockBytes;
    stream = {space.type,
              space.scale,
              std::vector<std::byte>(space.bytes),
              std::vector<std::uint64_t>(blocks, kNone),
              std::vector<std::uint64_t>(blocks, kNone),
              false};
  }
  if (stream.scale != space.scale) rescale(stream, space.scale);
  return stream;
}

void Residuals::rescale(Stream& stream, float scale) {
  const double divisor = static_cast<double>(stream.scale) / static_cast<double>(scale);
  if (stream.any) {
    const std::array<const std::byte*, 1> inputs{stream.values.data()};
    reduce(stream.type, inputs, divisor, stream.values.data(), stream.values.size() / size_of(stream.type));
  }
  stream.scale = scale;
}

std::size_t Residuals::add_to(const ValueSpace& space, std::size_t begin, std::span<std::byte> values) {
  if (values.empty() || !any(space.stream)) return 0;
  Stream& stream = stream_of(space);
  const std::size_t first = begin / kBlockBytes;
  const std::size_t last = (begin + values.size() - 1) / kBlockBytes;
  bool found = false;
  for (std::size_t block = first; block <= last; ++block) {
    if (stream.since[block] == kNone) continue;
    found = true;
    stream.under_way[block] = std::min(stream.under_way[block], stream.since[block]);
  }
  if (!found) return 0;
  std::byte* const kept = stream.values.data() + begin;
  if (is_zero({kept, values.size()})) {  // excluded values may have cancelled each other
    note_emptied(stream, first, last);
    return 0;
  }
  const std::array<const std::byte*, 2> inputs{values.data(), kept};
  reduce(stream.type, inputs, 1.0, values.data(), values.size() / size_of(stream.type));
  std::memset(kept, 0, values.size());
  note_emptied(stream, first, last);
  return values.size();
}

void Residuals::note_emptied(Stream& stream, std::size_t first_block, std::size_t last_block) {
  const std::span<const std::byte> values(stream.values);
  for (std::size_t block = first_block; block <= last_block; ++block) {
    const std::size_t begin = block * kBlockBytes;
    const std::size_t bytes = std::min(kBlockBytes, values.size() - begin);
    if (stream.since[block] != kNone && is_zero(values.subspan(begin, bytes))) stream.since[block] = kNone;
  }
  stream.any = std::any_of(stream.since.begin(), stream.since.end(),
                           [](std::uint64_t since) { return since != kNone; });
}

void Residuals::keep(const ValueSpace& space, std::size_t begin, std::span<const std::byte> values) {
  if (values.empty() || is_zero(values)) return;  // nothing to carry, and nothing that could get old
  const std::size_t elements = values.size() / size_of(space.type);
  if (!all_finite(space.type, values.data(), elements)) {
    dropped_bytes_ += values.size();
    return;
  }
  Stream& stream = stream_of(space);
  std::byte* const kept = stream.values.data() + begin;
  const std::array<const std::byte*, 2> inputs{kept, values.data()};
  reduce(space.type, inputs, 1.0, kept, elements);
  for (std::size_t block = begin / kBlockBytes; block <= (begin + values.size() - 1) / kBlockBytes; ++block) {
    const std::uint64_t under_way = stream.under_way[block];
    stream.since[block] = std::min(stream.since[block], under_way == kNone ? space.step : under_way);
  }
  stream.any = true;
}

void Residuals::settle(std::uint32_t stream) {
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return;
  if (!found->second.any) {
    streams_.erase(found);
  } else {
    std::fill(found->second.under_way.begin(), found->second.under_way.end(), kNone);
  }
}

std::uint8_t Residuals::oldest(std::uint64_t step) const {
  std::uint64_t first = kNone;
  for (const auto& [_, stream] : streams_) {
    for (const std::uint64_t since : stream.since) first = std::min(first, since);
    for (const std::uint64_t since : stream.under_way) first = std::min(first, since);
  }
  if (first == kNone) return 0;
  return static_cast<std::uint8_t>(std::clamp<std::uint64_t>(step - std::min(first, step), 1, 255));
}

std::size_t Residuals::bytes() const {
  std::size_t bytes = 0;
  for (const auto& [_, stream] : streams_) bytes += stream.values.size();
  return bytes;
}

KeptValues Residuals::take(std::uint32_t stream) {
  const auto found = streams_.find(stream);
  if (found == streams_.end() || !found->second.any) return {};
  KeptValues kept{found->second.type, found->second.scale, std::move(found->second.values)};
  streams_.erase(found);
  return kept;
}

std::size_t Residuals::drop_all() {
  std::size_t dropped = 0;
  for (const auto& [_, stream] : streams_) {
    for (std::size_t block = 0; block < stream.since.size(); ++block) {
      const std::size_t bytes = std::min(kBlockBytes, stream.values.size() - block * kBlockBytes);
      dropped += stream.since[block] == kNone ? 0 : bytes;
    }
  }
  streams_.clear();
  dropped_bytes_ += dropped;
  return dropped;
}

}  // namespace optireduce
