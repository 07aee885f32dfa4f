module @m {
  func.func public @main(%q: tensor<1x2x4x8xf32>, %k: tensor<1x2x4x8xf32>, %v: tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32> {
    %s = stablehlo.dot_general %q, %k, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3] : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>) -> tensor<1x2x4x4xf32>
    %i = stablehlo.iota dim = 2 : tensor<1x2x4x4xi32>
    %j = stablehlo.iota dim = 3 : tensor<1x2x4x4xi32>
    %c = stablehlo.compare GE, %i, %j, SIGNED : (tensor<1x2x4x4xi32>, tensor<1x2x4x4xi32>) -> tensor<1x2x4x4xi1>
    %n = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %b = stablehlo.broadcast_in_dim %n, dims = [] : (tensor<f32>) -> tensor<1x2x4x4xf32>
    %w = stablehlo.select %c, %s, %b : tensor<1x2x4x4xi1>, tensor<1x2x4x4xf32>
    %m = stablehlo.reduce(%w init: %n) applies stablehlo.maximum across dimensions = [3] : (tensor<1x2x4x4xf32>, tensor<f32>) -> tensor<1x2x4xf32>
    %mb = stablehlo.broadcast_in_dim %m, dims = [0, 1, 2] : (tensor<1x2x4xf32>) -> tensor<1x2x4x4xf32>
    %d = stablehlo.subtract %w, %mb : tensor<1x2x4x4xf32>
    %e = stablehlo.exponential %d : tensor<1x2x4x4xf32>
    %z = stablehlo.constant dense<0.0> : tensor<f32>
    %l = stablehlo.reduce(%e init: %z) applies stablehlo.add across dimensions = [3] : (tensor<1x2x4x4xf32>, tensor<f32>) -> tensor<1x2x4xf32>
    %lb = stablehlo.broadcast_in_dim %l, dims = [0, 1, 2] : (tensor<1x2x4xf32>) -> tensor<1x2x4x4xf32>
    %p = stablehlo.divide %e, %lb : tensor<1x2x4x4xf32>
    %o = stablehlo.dot_general %p, %v, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2] : (tensor<1x2x4x4xf32>, tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
    return %o : tensor<1x2x4x8xf32>
  }
}
