// The smallest test harness that names what failed: TEST(name) { CHECK(x); CHECK_EQ(a, b); } and RUN_TESTS().
#pragma once

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

namespace check {

struct Case {
  const char* name;
  std::function<void()> body;
};

inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

inline int& failures() {
  static int count = 0;
  return count;
}

struct Registrar {
  Registrar(const char* name, std::function<void()> body) { cases().push_back({name, std::move(body)}); }
};

inline void fail(const char* file, int line, const std::string& what) {
  std::printf("%s:%d: %s\n", file, line, what.c_str());
  ++failures();
}

inline int run_all() {
  int failed_cases = 0;
  for (const Case& test : cases()) {
    int before = failures();
    test.body();
    bool failed = failures() != before;
    failed_cases += failed ? 1 : 0;
    std::printf("%s %s\n", failed ? "FAILED" : "ok    ", test.name);
  }
  std::printf("%zu passed, %d failed\n", cases().size() - static_cast<std::size_t>(failed_cases),
              failed_cases);
  return failed_cases == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

template <typename A, typename B>
void check_equal(const A& a, const B& b, const char* text, const char* file, int line) {
  if (a == b) return;
  std::ostringstream message;
  message << text << ": " << a << " != " << b;
  fail(file, line, message.str());
}

}  // namespace check

#define TEST(name)                                       \
  static void name();                                    \
  static check::Registrar registrar_##name(#name, name); \
  static void name()
#define CHECK(condition) \
  if (!(condition)) check::fail(__FILE__, __LINE__, "CHECK(" #condition ") is false")
#define CHECK_EQ(a, b) check::check_equal(a, b, "CHECK_EQ(" #a ", " #b ")", __FILE__, __LINE__)
#define RUN_TESTS()          \
  int main() {               \
    return check::run_all(); \
  }
