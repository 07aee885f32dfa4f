// Coefficients shared by the instruction sets.
#pragma once

namespace flashlift::cpu {

// 2^r on [0, 1), exact at 0: relative error 9.4e-8 with these rounded coefficients (minimax, Remez). One degree more
// would give 1.3e-8.
inline constexpr float kExp2Polynomial[6] = {1.0f,
                                             0.6931513118046018f,
                                             0.24016445015508953f,
                                             0.05579991310373314f,
                                             0.009017030322450183f,
                                             0.0018671300698736024f};

}  // namespace flashlift::cpu
