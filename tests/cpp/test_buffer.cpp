// Pooled buffers: counted, reused, and never given back twice (the address sanitizer watches).
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "check.h"

using namespace optireduce;

TEST(a_buffer_has_the_room_that_was_asked_for) {
  BufferPool pool;
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, BufferPool::kSmall, BufferPool::kSmall + 1, BufferPool::kLarge}) {
    const BufferRef buffer = pool.take(bytes);
    CHECK(buffer.capacity() >= bytes);
    CHECK_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64, 0u);
    std::memset(buffer.data(), 0xff, buffer.capacity());
  }
}

TEST(bytes_in_use_follow_the_last_reference) {
  BufferPool pool;
  CHECK_EQ(pool.bytes_in_use(), 0u);
  {
    BufferRef first = pool.take(BufferPool::kLarge);
    CHECK(!first.shared());
    const BufferRef second = first;
    CHECK(first.shared());
    CHECK_EQ(second.data(), first.data());
    CHECK_EQ(pool.bytes_in_use(), BufferPool::kLarge);
    first = BufferRef();
    CHECK(!first);
    CHECK(!second.shared());
    CHECK_EQ(pool.bytes_in_use(), BufferPool::kLarge);
  }
  CHECK_EQ(pool.bytes_in_use(), 0u);
}

TEST(a_freed_buffer_is_used_again) {
  BufferPool pool;
  const std::byte* first = pool.take(100).data();
  CHECK_EQ(pool.take(BufferPool::kSmall).data(), first);
  const std::byte* large = pool.take(BufferPool::kLarge).data();
  CHECK(large != first);
  CHECK_EQ(pool.take(BufferPool::kLarge).data(), large);
}

TEST(what_a_rush_needed_goes_back_after_it) {
  BufferPool pool;
  std::vector<BufferRef> rush;
  for (int i = 0; i < 200; ++i) rush.push_back(pool.take(BufferPool::kLarge));
  rush.clear();
  CHECK_EQ(pool.bytes_free(), 200 * BufferPool::kLarge);
  for (int i = 0; i < 100'000; ++i) pool.take(BufferPool::kLarge);
  CHECK_EQ(pool.bytes_free(), BufferPool::kLarge);
}

namespace {

/// Of this process, in bytes.
std::size_t resident() {
  std::size_t all = 0, pages = 0;
  std::ifstream("/proc/self/statm") >> all >> pages;
  return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

TEST(the_pages_of_what_goes_back_are_the_systems_again) {
  BufferPool pool;
  std::vector<BufferRef> rush;
  std::vector<std::unique_ptr<int>> pins;  // in between: an allocator alone would keep the pages
  for (int i = 0; i < 200; ++i) {
    rush.push_back(pool.take(BufferPool::kLarge));
    std::memset(rush.back().data(), 1, rush.back().capacity());
    pins.push_back(std::make_unique<int>(i));
  }
  rush.clear();
  const std::size_t most = resident();
  for (int i = 0; i < 100'000; ++i) pool.take(BufferPool::kLarge);
  CHECK(resident() + 150 * BufferPool::kLarge < most);
}

TEST(what_is_needed_now_and_then_stays) {
  BufferPool pool;
  for (int again = 0; again < 100; ++again) {
    std::vector<BufferRef> held;
    for (int i = 0; i < 100; ++i) held.push_back(pool.take(BufferPool::kLarge));
    held.clear();
    for (int i = 0; i < 1'000; ++i) pool.take(BufferPool::kSmall);
    CHECK(pool.bytes_free() >= 100 * BufferPool::kLarge);
  }
}

TEST(references_may_be_assigned_to_themselves_and_moved) {
  BufferPool pool;
  BufferRef buffer = pool.take(10);
  const BufferRef& same = buffer;
  buffer = same;
  CHECK(!buffer.shared());
  BufferRef moved = std::move(buffer);
  CHECK(!moved.shared());
  CHECK_EQ(pool.bytes_in_use(), moved.capacity());
}

TEST(more_buffers_than_the_pool_keeps_are_freed) {
  BufferPool pool;
  std::vector<BufferRef> many;
  for (int i = 0; i < 1000; ++i) many.push_back(pool.take(1));
  CHECK_EQ(pool.bytes_in_use(), 1000 * BufferPool::kSmall);
  many.clear();
  CHECK_EQ(pool.bytes_in_use(), 0u);
}

RUN_TESTS()
