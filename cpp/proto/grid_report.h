// The reports, counters and policies of a grid's lanes as one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "proto/report.h"
#include "proto/schedule.h"
#include "proto/stats.h"

namespace optireduce {

/// Adds what one stage tells, whose data begins at `begin` in the bucket.
void add_stage(Report& total, const Report& stage, std::size_t begin);

/// Adds to what the packets of a rank's piece lack (OwnedShard::set_lost) what was lost in the column.
void add_lacking(std::vector<std::uint16_t>& lacking, const Shard& piece, const Report& across,
                 Rank group_size);

void add_policy(PolicySnapshot& total, const PolicySnapshot& stage);

/// `operations`: also what counts operations rather than packets.
void add_stats(Stats& total, const Stats& lane, bool operations);

}  // namespace optireduce
