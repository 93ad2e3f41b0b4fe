// What can be said of an operation: who was included where, who came last, what it waits for.
#pragma once

#include <string>
#include <vector>

#include "operation/operation.h"
#include "operation/time_model.h"

namespace optireduce {

/// All but what the group knows: the view, the policies, the age of residuals.
Report ledger_of(const Operation& operation, Time now);
/// Of what was decided, alike on all members.
std::uint64_t digest_of(const Operation& operation);
/// How the contributions to our shard came. Of an operation that half of the members have begun, and in which
/// our shard is not empty.
std::vector<Arrival> arrivals_of(const Operation& operation, Time now);
/// The same of our row's contributions to what we relay, of which half of the row has begun.
std::vector<Arrival> row_arrivals_of(const Operation& operation, Time now);

/// Ranks that the operation waits for: those whose contributions are furthest behind (the others wait for
/// the same ranks) or, if none is missing, those whose decisions are.
std::vector<Rank> waiting_for(const Operation& operation);
/// Names the rank and what is missing of it.
std::string describe_wait(const Operation& operation, Rank rank);

}  // namespace optireduce
