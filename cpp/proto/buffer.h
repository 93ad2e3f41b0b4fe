// Receive buffers that outlive the call that received them: a contribution stays in the buffer the kernel
// wrote it to until it is reduced, so that no byte is copied twice.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace optireduce {

class BufferPool;

/// A counted reference to a pooled buffer. Not thread-safe: a pool and its references belong to one endpoint.
class BufferRef {
 public:
  BufferRef() = default;
  BufferRef(const BufferRef& other) : block_(other.block_) { retain(); }
  BufferRef(BufferRef&& other) noexcept : block_(std::exchange(other.block_, nullptr)) {}
  BufferRef& operator=(BufferRef other) noexcept {
    std::swap(block_, other.block_);
    return *this;
  }
  ~BufferRef() { release(); }

  explicit operator bool() const { return block_ != nullptr; }
  std::byte* data() const;
  std::size_t capacity() const;
  bool shared() const;

 private:
  friend class BufferPool;
  struct Block {
    BufferPool* pool;
    std::uint32_t references;
    std::uint32_t capacity;
  };
  explicit BufferRef(Block* block) : block_(block) {}
  void retain();
  void release();

  Block* block_ = nullptr;
};

/// Keeps freed buffers, last in first out, because the last one is still in the cache.
class BufferPool {
 public:
  /// Room for the largest UDP datagram or GRO batch.
  static constexpr std::size_t kLarge = 65536;
  /// Room for a few packets, and for one packet, of an ordinary network.
  static constexpr std::size_t kMedium = 16384;
  static constexpr std::size_t kSmall = 2048;

  BufferPool() = default;
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;
  ~BufferPool();

  /// A buffer of at least `bytes` (at most kLarge).
  BufferRef take(std::size_t bytes);

  /// Bytes in buffers that somebody holds.
  std::size_t bytes_in_use() const { return bytes_in_use_; }

 private:
  friend class BufferRef;
  static constexpr std::size_t kMaxFreePerClass = 256;
  void give_back(BufferRef::Block* block);

  static std::size_t class_of(std::size_t bytes) { return bytes <= kSmall ? 0 : bytes <= kMedium ? 1 : 2; }

  std::array<std::vector<BufferRef::Block*>, 3> free_;  // by class_of
  std::size_t bytes_in_use_ = 0;
};

}  // namespace optireduce
