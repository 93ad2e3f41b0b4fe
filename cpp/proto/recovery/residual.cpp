#include "recovery/residual.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

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

std::span<const std::byte> Residuals::Stream::block(std::size_t index) const {
  const std::size_t begin = index * block_bytes;
  return std::span(values).subspan(begin, std::min(block_bytes, values.size() - begin));
}

bool Residuals::Stream::fits(const ValueSpace& space) const {
  const std::size_t wanted = space.piece_bytes == 0 ? kBlockBytes : space.piece_bytes;
  return values.size() == space.bytes && type == space.type && block_bytes == wanted &&
         weights.empty() == (space.piece_bytes == 0);
}

void Residuals::note_begun(std::uint32_t stream, std::uint64_t step) {
  const auto found = streams_.find(stream);
  if (found != streams_.end()) found->second.latest = std::max(found->second.latest, step);
}

bool Residuals::any() const {
  return std::ranges::any_of(streams_, [](const auto& entry) { return entry.second.any; });
}

Residuals::Stream& Residuals::stream_of(const ValueSpace& space) {
  Stream& stream = streams_[space.stream];
  if (!stream.fits(space)) {
    if (stream.any) dropped_bytes_ += stream.values.size();
    const bool weighted = space.piece_bytes != 0;
    const std::size_t block_bytes = weighted ? space.piece_bytes : kBlockBytes;
    const std::size_t blocks = (space.bytes + block_bytes - 1) / block_bytes;
    stream = {space.type,
              space.scale,
              block_bytes,
              std::vector<std::byte>(space.bytes),
              std::vector<std::uint32_t>(weighted ? blocks : 0, 0),
              std::vector<std::uint64_t>(blocks, kNone),
              std::vector<std::uint64_t>(blocks, kNone),
              space.step,
              false};
  }
  if (stream.scale != space.scale) rescale(stream, space.scale);
  stream.latest = std::max(stream.latest, space.step);
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

void Residuals::add(Stream& stream, std::size_t begin, std::span<const std::byte> values) {
  std::byte* const kept = stream.values.data() + begin;
  const std::array<const std::byte*, 2> inputs{kept, values.data()};
  reduce(stream.type, inputs, 1.0, kept, values.size() / size_of(stream.type));
}

Residuals::Carried Residuals::add_to(const ValueSpace& space, std::size_t begin,
                                     std::span<std::byte> values) {
  if (values.empty() || !any(space.stream)) return {};
  Stream& stream = stream_of(space);
  const std::size_t first = stream.block_of(begin);
  const std::size_t last = stream.block_of(begin + values.size() - 1);
  bool found = false;
  std::uint32_t weight = 0;
  for (std::size_t block = first; block <= last; ++block) {
    if (stream.since[block] == kNone) continue;
    found = true;
    stream.under_way[block] = std::min(stream.under_way[block], stream.since[block]);
    if (!stream.weights.empty()) weight += std::exchange(stream.weights[block], 0);
  }
  if (!found) return {};
  std::byte* const kept = stream.values.data() + begin;
  if (is_zero({kept, values.size()})) {  // excluded values may have cancelled each other
    note_emptied(stream, first, last);
    return {weight == 0 ? 0 : values.size(), weight};
  }
  const std::array<const std::byte*, 2> inputs{values.data(), kept};
  reduce(stream.type, inputs, 1.0, values.data(), values.size() / size_of(stream.type));
  std::memset(kept, 0, values.size());
  note_emptied(stream, first, last);
  return {values.size(), weight};
}

void Residuals::note_emptied(Stream& stream, std::size_t first_block, std::size_t last_block) {
  for (std::size_t block = first_block; block <= last_block; ++block) {
    const bool weightless = stream.weights.empty() || stream.weights[block] == 0;
    if (stream.since[block] != kNone && weightless && is_zero(stream.block(block)))
      stream.since[block] = kNone;
  }
  stream.any = std::any_of(stream.since.begin(), stream.since.end(),
                           [](std::uint64_t since) { return since != kNone; });
}

void Residuals::keep(const ValueSpace& space, std::size_t begin, std::span<const std::byte> values,
                     std::uint32_t weight) {
  // Nothing to carry, and nothing that could get old. (Gradients of zero are samples, too.)
  if (values.empty() || (weight == 0 && is_zero(values))) return;
  if (!all_finite(space.type, values.data(), values.size() / size_of(space.type))) {
    dropped_bytes_ += values.size();
    return;
  }
  Stream& stream = stream_of(space);
  add(stream, begin, values);
  for (std::size_t block = stream.block_of(begin); block <= stream.block_of(begin + values.size() - 1);
       ++block) {
    const std::uint64_t under_way = stream.under_way[block];
    stream.since[block] = std::min(stream.since[block], under_way == kNone ? space.step : under_way);
    if (!stream.weights.empty()) stream.weights[block] += weight;
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
  std::uint64_t oldest = 0;
  for (const auto& [_, stream] : streams_) {
    std::uint64_t first = kNone;
    for (const std::uint64_t since : stream.since) first = std::min(first, since);
    for (const std::uint64_t since : stream.under_way) first = std::min(first, since);
    if (first == kNone) continue;
    const std::uint64_t now = std::min(step, stream.latest);
    oldest = std::max(oldest, std::clamp<std::uint64_t>(now - std::min(first, now), 1, 255));
  }
  return static_cast<std::uint8_t>(oldest);
}

std::size_t Residuals::bytes() const {
  std::size_t bytes = 0;
  for (const auto& [_, stream] : streams_) bytes += stream.values.size();
  return bytes;
}

KeptValues Residuals::take(std::uint32_t stream) {
  const auto found = streams_.find(stream);
  if (found == streams_.end() || !found->second.any) return {};
  Stream& all = found->second;
  KeptValues kept{all.type, all.scale, std::move(all.values), std::move(all.weights)};
  streams_.erase(found);
  return kept;
}

Residuals::Loan Residuals::lend(std::uint32_t stream) const {
  Loan loan;
  if (!any(stream)) return loan;
  loan.stream_ = stream;
  loan.kept_ = streams_.at(stream);
  return loan;
}

void Residuals::give_back(const Loan& loan) {
  const Stream& lent = loan.kept_;
  if (!lent.any) return;
  const ValueSpace space{.stream = loan.stream_,
                         .type = lent.type,
                         .bytes = lent.values.size(),
                         .step = lent.latest,
                         .scale = lent.scale,
                         .piece_bytes = lent.weights.empty() ? 0 : lent.block_bytes};
  Stream& stream = stream_of(space);
  for (std::size_t block = 0; block < lent.since.size(); ++block) {
    if (lent.since[block] == kNone) continue;
    add(stream, block * lent.block_bytes, lent.block(block));
    stream.since[block] = std::min(stream.since[block], lent.since[block]);
    if (!stream.weights.empty()) stream.weights[block] += lent.weights[block];
  }
  stream.any = true;
}

std::size_t Residuals::drop_all() {
  std::size_t dropped = 0;
  for (const auto& [_, stream] : streams_) {
    for (std::size_t block = 0; block < stream.since.size(); ++block) {
      dropped += stream.since[block] == kNone ? 0 : stream.block(block).size();
    }
  }
  streams_.clear();
  dropped_bytes_ += dropped;
  return dropped;
}

}  // namespace optireduce
