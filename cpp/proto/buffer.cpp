#include "proto/buffer.h"

#include <new>

namespace optireduce {
namespace {

constexpr std::size_t kAlignment =
    64;  // the block's header takes one cache line, the data starts on the next

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

BufferPool::~BufferPool() {
  for (auto& list : free_) {
    for (BufferRef::Block* block : list) ::operator delete(block, std::align_val_t{kAlignment});
  }
}

BufferRef BufferPool::take(std::size_t bytes) {
  constexpr std::size_t kCapacities[] = {kSmall, kMedium, kLarge};
  const std::size_t capacity = kCapacities[class_of(bytes)];
  auto& free_list = free_[class_of(bytes)];
  BufferRef::Block* block;
  if (free_list.empty()) {
    void* memory = ::operator new(kAlignment + capacity, std::align_val_t{kAlignment});
    block = new (memory) BufferRef::Block{this, 0, static_cast<std::uint32_t>(capacity)};
  } else {
    block = free_list.back();
    free_list.pop_back();
  }
  block->references = 1;
  bytes_in_use_ += capacity;
  return BufferRef(block);
}

void BufferPool::give_back(BufferRef::Block* block) {
  bytes_in_use_ -= block->capacity;
  auto& free_list = free_[class_of(block->capacity)];
  if (free_list.size() < kMaxFreePerClass) {
    free_list.push_back(block);
  } else {
    ::operator delete(block, std::align_val_t{kAlignment});
  }
}

}  // namespace optireduce
