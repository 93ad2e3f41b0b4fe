// Python's names for what happens to data that is missing at a deadline.
#pragma once

#include <stdexcept>
#include <string>

#include "group/config.h"

inline optireduce::Delivery delivery_of(const std::string& name) {
  if (name == "carry") return optireduce::Delivery::Carry;
  if (name == "best-effort") return optireduce::Delivery::BestEffort;
  throw std::invalid_argument("delivery is \"" + name + "\", must be \"carry\" or \"best-effort\"");
}

inline const char* delivery_name(optireduce::Delivery delivery) {
  return delivery == optireduce::Delivery::Carry ? "carry" : "best-effort";
}
