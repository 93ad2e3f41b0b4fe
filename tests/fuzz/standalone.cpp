// A fuzzer without libFuzzer, for compilers that have none: replays a corpus, then mutates it for a while
// with a seeded source of chance. It knows nothing of coverage; what it finds it can find again.
//
//   fuzz_x [--seconds N] [--seed S] [--only I] CORPUS...     folders or files
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "sim/random.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));

namespace {

using Bytes = std::vector<std::uint8_t>;
using optireduce::sim::Random;

constexpr std::size_t kMostBytes = 8'192;
constexpr std::uint64_t kInteresting[] = {0,      1,      7,           63,          64,   255,
                                          0x7fff, 0xffff, 0x7fff'ffff, 0xffff'ffff, ~0ull};

std::uint64_t seed = 1, iteration = 0;
bool replaying = true;

void say_how_to_repeat() {
  if (replaying) {
    std::fprintf(stderr, "\nan input of the corpus: number %llu in the order of names\n",
                 static_cast<unsigned long long>(iteration));
    return;
  }
  std::fprintf(stderr, "\nagain: the same command with --seed %llu --only %llu\n",
               static_cast<unsigned long long>(seed), static_cast<unsigned long long>(iteration));
}

Bytes read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(file), {});
}

void mutate_once(Bytes& input, const Bytes& other, Random& random) {
  const std::size_t at = random.below(input.size() + 1);
  const std::size_t some = 1 + random.below(16);
  switch (random.below(6)) {
    case 0:
      if (at < input.size()) input[at] ^= static_cast<std::uint8_t>(1u << random.below(8));
      break;
    case 1:
      if (at < input.size()) input[at] = static_cast<std::uint8_t>(random.next());
      break;
    case 2:
      for (std::size_t i = 0; i < some; ++i)
        input.insert(input.begin() + static_cast<std::ptrdiff_t>(at),
                     static_cast<std::uint8_t>(random.next()));
      break;
    case 3:
      input.erase(input.begin() + static_cast<std::ptrdiff_t>(at),
                  input.begin() + static_cast<std::ptrdiff_t>(std::min(input.size(), at + some)));
      break;
    case 4: {
      const std::uint64_t value = kInteresting[random.below(std::size(kInteresting))];
      const std::size_t width = std::size_t{1} << random.below(4);
      if (at + width <= input.size()) std::memcpy(input.data() + at, &value, width);
      break;
    }
    default:
      if (!other.empty()) {
        const std::size_t from = random.below(other.size());
        input.resize(at);
        input.insert(input.end(), other.begin() + static_cast<std::ptrdiff_t>(from), other.end());
      }
  }
  if (input.size() > kMostBytes) input.resize(kMostBytes);
}

/// The input of an iteration is a function of the seed, its number and the corpus alone.
Bytes mutant(const std::vector<Bytes>& corpus, std::uint64_t number) {
  Random random(seed * 0x9e37'79b9'7f4a'7c15 + number);
  Bytes input = corpus[random.below(corpus.size())];
  const Bytes& other = corpus[random.below(corpus.size())];
  for (std::uint64_t changes = 1 + random.below(8); changes > 0; --changes) mutate_once(input, other, random);
  return input;
}

std::vector<Bytes> load(const std::vector<std::string>& places) {
  std::vector<std::filesystem::path> files;
  for (const std::string& place : places) {
    if (!std::filesystem::is_directory(place))
      files.emplace_back(place);
    else
      for (const auto& entry : std::filesystem::directory_iterator(place)) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());  // or --only would mean something else on another machine
  std::vector<Bytes> corpus;
  for (const auto& file : files) corpus.push_back(read(file));
  if (corpus.empty()) corpus.emplace_back();
  return corpus;
}

void run(const Bytes& input) {
  LLVMFuzzerTestOneInput(input.data(), input.size());
}

void run_for(const std::vector<Bytes>& corpus, double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto began = Clock::now();
  double told = 0, passed = 0;
  for (; passed < seconds; passed = std::chrono::duration<double>(Clock::now() - began).count()) {
    run(mutant(corpus, iteration));
    ++iteration;
    if (passed < told + 5) continue;
    told = passed;
    std::fprintf(stderr, "%3.0f of %.0f s, %llu inputs\n", passed, seconds,
                 static_cast<unsigned long long>(iteration));
  }
}

}  // namespace

int main(int argc, char** argv) {
  double seconds = 0;
  long long only = -1;
  std::vector<std::string> places;
  for (int i = 1; i < argc; ++i) {
    const bool option = std::strncmp(argv[i], "--", 2) == 0 && i + 1 < argc;
    if (!option)
      places.emplace_back(argv[i]);
    else if (std::strcmp(argv[i], "--seconds") == 0)
      seconds = std::atof(argv[++i]);
    else if (std::strcmp(argv[i], "--seed") == 0)
      seed = std::strtoull(argv[++i], nullptr, 10);
    else if (std::strcmp(argv[i], "--only") == 0)
      only = std::atoll(argv[++i]);
  }
  const std::vector<Bytes> corpus = load(places);
  if (only >= 0) {
    run(mutant(corpus, static_cast<std::uint64_t>(only)));
    return EXIT_SUCCESS;
  }
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(say_how_to_repeat);
  std::signal(SIGABRT, [](int) { say_how_to_repeat(); });
  for (iteration = 0; iteration < corpus.size(); ++iteration) run(corpus[iteration]);
  std::fprintf(stderr, "%zu inputs of the corpus are fine\n", corpus.size());
  replaying = false;
  iteration = 0;
  run_for(corpus, seconds);
  std::fprintf(stderr, "%llu mutated inputs are fine (seed %llu)\n",
               static_cast<unsigned long long>(iteration), static_cast<unsigned long long>(seed));
  return EXIT_SUCCESS;
}
