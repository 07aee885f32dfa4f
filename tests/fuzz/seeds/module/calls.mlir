func.func public @main(%x: tensor<2x4xbf16>, %i: tensor<i32>) -> tensor<2x2xf32> {
  %0 = call @half(%x) : (tensor<2x4xbf16>) -> tensor<2x2xbf16>
  %1 = stablehlo.convert %0 : (tensor<2x2xbf16>) -> tensor<2x2xf32>
  %2:2 = stablehlo.while(%a = %1, %b = %i) : tensor<2x2xf32>, tensor<i32>
    cond {
      %c = stablehlo.constant dense<3> : tensor<i32>
      %d = stablehlo.compare LT, %b, %c, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %d : tensor<i1>
    } do {
      %c = stablehlo.constant dense<1> : tensor<i32>
      %d = stablehlo.add %b, %c : tensor<i32>
      stablehlo.return %a, %d : tensor<2x2xf32>, tensor<i32>
    }
  return %2#0 : tensor<2x2xf32>
}
func.func private @half(%x: tensor<2x4xbf16>) -> tensor<2x2xbf16> {
  %0 = stablehlo.slice %x [0:2, 0:4:2] : (tensor<2x4xbf16>) -> tensor<2x2xbf16>
  %1 = stablehlo.transpose %0, dims = [1, 0] : (tensor<2x2xbf16>) -> tensor<2x2xbf16>
  return %1 : tensor<2x2xbf16>
}
