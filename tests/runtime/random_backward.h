// One randomly drawn problem forward and backward, its gradients compared with the oracle.
#pragma once

#include <string>

namespace flashlift::testing {

// Empty if the gradients are right, and the same for any number of threads; otherwise the problem and what is wrong.
std::string check_random_backward(unsigned long seed);

}  // namespace flashlift::testing
