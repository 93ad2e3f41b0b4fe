#include "base/buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <new>

namespace optireduce {
namespace {

constexpr std::size_t kAlignment =
    64;  // the block's header takes one cache line, the data starts on the next

/// An allocator that gets memory back keeps its pages, unless all that was allocated after it is free too.
void give_pages_back(std::byte* data, std::size_t bytes) {
  static const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t first = (begin + page - 1) / page * page;
  const std::uintptr_t end = (begin + bytes) / page * page;
  if (first < end) madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED);
}

}  // namespace

std::byte* BufferRef::data() const {
  return reinterpret_cast<std::byte*>(block_) + kAlignment;
}

std::size_t BufferRef::capacity() const {
  return block_->capacity;
}

bool BufferRef::shared() const {
  return block_->references > 1;
}

void BufferRef::retain() {
  if (block_ != nullptr) ++block_->references;
}

void BufferRef::release() {
  if (block_ != nullptr && --block_->references == 0) block_->pool->give_back(block_);
}

void BufferPool::destroy(BufferRef::Block* block) {
  give_pages_back(reinterpret_cast<std::byte*>(block) + kAlignment, block->capacity);
  ::operator delete(block, std::align_val_t{kAlignment});
}

BufferPool::~BufferPool() {
  for (FreeList& list : free_) {
    for (BufferRef::Block* block : list.blocks) destroy(block);
  }
}

BufferRef BufferPool::take(std::size_t bytes) {
  if (--takes_until_look_ == 0) let_idle_go();
  constexpr std::size_t kCapacities[] = {kSmall, kMedium, kLarge};
  const std::size_t capacity = kCapacities[class_of(bytes)];
  FreeList& list = free_[class_of(bytes)];
  BufferRef::Block* block;
  if (list.blocks.empty()) {
    void* memory = ::operator new(kAlignment + capacity, std::align_val_t{kAlignment});
    block = new (memory) BufferRef::Block{this, 0, static_cast<std::uint32_t>(capacity)};
  } else {
    block = list.blocks.back();
    list.blocks.pop_back();
    list.least = std::min(list.least, list.blocks.size());
  }
  block->references = 1;
  bytes_in_use_ += capacity;
  return BufferRef(block);
}

void BufferPool::give_back(BufferRef::Block* block) {
  bytes_in_use_ -= block->capacity;
  FreeList& list = free_[class_of(block->capacity)];
  if (list.blocks.size() < kMaxFreePerClass) {
    list.blocks.push_back(block);
  } else {
    destroy(block);
  }
}

/// Half of those that nobody needed, the oldest: the next rush may come soon.
void BufferPool::let_idle_go() {
  takes_until_look_ = kTakesBetweenLooks;
  for (FreeList& list : free_) {
    const auto idle = static_cast<std::ptrdiff_t>((list.least + 1) / 2);
    std::for_each(list.blocks.begin(), list.blocks.begin() + idle, destroy);
    list.blocks.erase(list.blocks.begin(), list.blocks.begin() + idle);
    list.least = list.blocks.size();
  }
}

std::size_t BufferPool::bytes_free() const {
  std::size_t bytes = 0;
  for (const FreeList& list : free_) {
    for (const BufferRef::Block* block : list.blocks) bytes += block->capacity;
  }
  return bytes;
}

}  // namespace optireduce
