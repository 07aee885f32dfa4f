// Checking the contents of a call's tensors that count queries, keys and pages, where the memory can be read.
#pragma once

#include <span>
#include <vector>

#include "flashlift/problem.h"
#include "flashlift/result.h"
#include "problem/features.h"

namespace flashlift::runtime {

// What each of a problem's captured tensors holds: only those that a word declares are known.
std::vector<problem::Holds> contents_of(const Problem& problem);

// Errors: cumulative lengths that do not begin with 0, decrease or go beyond the call's queries or keys; key lengths
// that are negative or go beyond the keys; a page table that gives an unmasked key a page that does not exist.
// `arguments` match the problem. Takes time linear in the elements of these tensors.
Status verify_values(const Problem& problem, std::span<const problem::Holds> contents,
                     const AttentionArguments& arguments);

}  // namespace flashlift::runtime
