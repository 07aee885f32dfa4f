// One randomly drawn forward problem, compared with the oracle.
#pragma once

#include <string>

namespace flashlift::testing {

// Empty if the result is right; otherwise the problem and what is wrong with it.
std::string check_random_forward(unsigned long seed);

}  // namespace flashlift::testing
