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

/// A counted reference to a pooled buffer. Not thread-safe: a pool and its references belong to one group.
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

/// Keeps freed buffers, last in first out, because the last one is still in the cache. What a rush needed
/// goes back to the system after it, little by little.
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
  /// Bytes in buffers that wait for their next use.
  std::size_t bytes_free() const;

 private:
  friend class BufferRef;
  static constexpr std::size_t kMaxFreePerClass = 256;
  /// So many buffers are taken from one look for idle ones to the next: some MB to some hundred MB of
  /// packets.
  static constexpr std::uint32_t kTakesBetweenLooks = 4096;

  struct FreeList {
    std::vector<BufferRef::Block*> blocks;
    std::size_t least = 0;  // that there were since the last look: so many nobody needed
  };

  static void destroy(BufferRef::Block* block);
  void give_back(BufferRef::Block* block);
  void let_idle_go();

  static std::size_t class_of(std::size_t bytes) { return bytes <= kSmall ? 0 : bytes <= kMedium ? 1 : 2; }

  std::array<FreeList, 3> free_;  // by class_of
  std::size_t bytes_in_use_ = 0;
  std::uint32_t takes_until_look_ = kTakesBetweenLooks;
};

}  // namespace optireduce
