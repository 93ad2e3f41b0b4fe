// What tests of the simulator itself share.
#pragma once

#include <exception>
#include <string>

#include "sim_case.h"

namespace simtrouble {

using namespace simcase;

inline sim::SimOptions lossy(std::uint64_t seed) {
  sim::SimOptions options;
  options.ranks = 4;
  options.seed = seed;
  options.link.loss = 0.05;
  options.link.jitter = Duration::micros(100);
  options.link.duplicate = 0.05;
  options.link.reorder = 0.05;
  options.hostile.replay = 0.01;
  options.seal = seed % 2 == 0 ? Seal::Kind::Token : Seal::Kind::Tag;
  return options;
}

template <typename Body>
std::string error_of(const Body& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace simtrouble
