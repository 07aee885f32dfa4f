module @all_operations {
  func.func @unary(%arg0: tensor<4x6xf32>, %arg1: tensor<4x6xi32>) {
    %0 = stablehlo.abs %arg0 : tensor<4x6xf32>
    %1 = stablehlo.cbrt %arg0 : tensor<4x6xf32>
    %2 = stablehlo.ceil %arg0 : tensor<4x6xf32>
    %3 = stablehlo.cosine %arg0 : tensor<4x6xf32>
    %4 = stablehlo.exponential %arg0 : tensor<4x6xf32>
    %5 = stablehlo.exponential_minus_one %arg0 : tensor<4x6xf32>
    %6 = stablehlo.floor %arg0 : tensor<4x6xf32>
    %7 = stablehlo.log %arg0 : tensor<4x6xf32>
    %8 = stablehlo.log_plus_one %arg0 : tensor<4x6xf32>
    %9 = stablehlo.logistic %arg0 : tensor<4x6xf32>
    %10 = stablehlo.negate %arg0 : tensor<4x6xf32>
    %11 = stablehlo.round_nearest_afz %arg0 : tensor<4x6xf32>
    %12 = stablehlo.round_nearest_even %arg0 : tensor<4x6xf32>
    %13 = stablehlo.rsqrt %arg0 : tensor<4x6xf32>
    %14 = stablehlo.sign %arg0 : tensor<4x6xf32>
    %15 = stablehlo.sine %arg0 : tensor<4x6xf32>
    %16 = stablehlo.sqrt %arg0 : tensor<4x6xf32>
    %17 = stablehlo.tan %arg0 : tensor<4x6xf32>
    %18 = stablehlo.tanh %arg0 : tensor<4x6xf32>
    %19 = stablehlo.count_leading_zeros %arg1 : tensor<4x6xi32>
    %20 = stablehlo.not %arg1 : tensor<4x6xi32>
    %21 = stablehlo.popcnt %arg1 : tensor<4x6xi32>
    return
  }
  func.func @binary(%arg0: tensor<4x6xf32>, %arg1: tensor<4x6xi32>) {
    %0 = stablehlo.add %arg0, %arg0 : tensor<4x6xf32>
    %1 = stablehlo.atan2 %arg0, %arg0 : tensor<4x6xf32>
    %2 = stablehlo.divide %arg0, %arg0 : tensor<4x6xf32>
    %3 = stablehlo.maximum %arg0, %arg0 : tensor<4x6xf32>
    %4 = stablehlo.minimum %arg0, %arg0 : tensor<4x6xf32>
    %5 = stablehlo.multiply %arg0, %arg0 : tensor<4x6xf32>
    %6 = stablehlo.power %arg0, %arg0 : tensor<4x6xf32>
    %7 = stablehlo.remainder %arg0, %arg0 : tensor<4x6xf32>
    %8 = stablehlo.subtract %arg0, %arg0 : tensor<4x6xf32>
    %9 = stablehlo.and %arg1, %arg1 : tensor<4x6xi32>
    %10 = stablehlo.or %arg1, %arg1 : tensor<4x6xi32>
    %11 = stablehlo.xor %arg1, %arg1 : tensor<4x6xi32>
    %12 = stablehlo.shift_left %arg1, %arg1 : tensor<4x6xi32>
    %13 = stablehlo.shift_right_arithmetic %arg1, %arg1 : tensor<4x6xi32>
    %14 = stablehlo.shift_right_logical %arg1, %arg1 : tensor<4x6xi32>
    return
  }
  func.func @elementwise(%arg0: tensor<4x6xf32>, %arg1: tensor<4x6xi32>, %arg2: tensor<4x6xi1>, %arg3: tensor<f32>, %arg4: tensor<i1>) {
    %0 = stablehlo.convert %arg0 : (tensor<4x6xf32>) -> tensor<4x6xbf16>
    %1 = stablehlo.is_finite %arg0 : (tensor<4x6xf32>) -> tensor<4x6xi1>
    %2 = stablehlo.complex %arg0, %arg0 : tensor<4x6xcomplex<f32>>
    %3 = stablehlo.real %2 : (tensor<4x6xcomplex<f32>>) -> tensor<4x6xf32>
    %4 = stablehlo.imag %2 : (tensor<4x6xcomplex<f32>>) -> tensor<4x6xf32>
    %5 = stablehlo.reduce_precision %arg0, format = e8m10 : tensor<4x6xf32>
    %6 = stablehlo.compare LT, %arg0, %arg0, TOTALORDER : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xi1>
    %7 = stablehlo.compare NE, %arg1, %arg1 : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi1>
    %8 = stablehlo.clamp %arg3, %arg0, %arg3 : (tensor<f32>, tensor<4x6xf32>, tensor<f32>) -> tensor<4x6xf32>
    %9 = stablehlo.clamp %arg0, %arg0, %arg0 : tensor<4x6xf32>
    %10 = stablehlo.select %arg2, %arg0, %arg0 : tensor<4x6xi1>, tensor<4x6xf32>
    %11 = stablehlo.select %arg4, %arg0, %arg0 : tensor<i1>, tensor<4x6xf32>
    %12 = stablehlo.exponential %arg0 {note = "kept", result_accuracy = #stablehlo.result_accuracy<atol = 1.000000e-05, ulps = 2, mode = #stablehlo.result_accuracy_mode<TOLERANCE>>} : tensor<4x6xf32>
    %13 = stablehlo.add %arg0, %arg0 {mhlo.frontend_attributes = {a = "b"}} : tensor<4x6xf32>
    return
  }
  func.func @sources(%arg0: tensor<2xi64>) {
    %cst = stablehlo.constant dense<[[1.000000e+00, 0xFF800000], [2.500000e+00, 0x7FC00000]]> : tensor<2x2xf32>
    %c = stablehlo.constant {note = 1 : i32} dense<true> : tensor<3xi1>
    %0 = stablehlo.iota dim = 1 : tensor<2x3xi32>
    %1 = stablehlo.dynamic_iota %arg0, dim = 0 : (tensor<2xi64>) -> tensor<?x?xf32>
    %2 = stablehlo.create_token : !stablehlo.token
    %3 = stablehlo.partition_id : tensor<ui32>
    %4 = stablehlo.replica_id : tensor<ui32>
    %5 = stablehlo.after_all %2, %2 : !stablehlo.token
    return
  }
  func.func @shapes(%arg0: tensor<4x6xf32>, %arg1: tensor<4x2xf32>, %arg2: tensor<2xi64>, %arg3: tensor<i32>, %arg4: tensor<f32>, %arg5: tensor<?x?xf32>) {
    %0 = stablehlo.bitcast_convert %arg0 : (tensor<4x6xf32>) -> tensor<4x6xi32>
    %1 = stablehlo.broadcast %arg0, sizes = [2] : (tensor<4x6xf32>) -> tensor<2x4x6xf32>
    %2 = stablehlo.broadcast_in_dim %arg0, dims = [2, 0] : (tensor<4x6xf32>) -> tensor<6x3x4xf32>
    %3 = stablehlo.broadcast_in_dim %arg4, dims = [] : (tensor<f32>) -> tensor<2xf32>
    %4 = stablehlo.dynamic_broadcast_in_dim %arg0, %arg2, dims = [0, 1] {known_expanding_dimensions = array<i64>, known_nonexpanding_dimensions = array<i64: 0, 1>} : (tensor<4x6xf32>, tensor<2xi64>) -> tensor<4x6xf32>
    %5 = stablehlo.concatenate %arg0, %arg1, %arg1, dim = 1 : (tensor<4x6xf32>, tensor<4x2xf32>, tensor<4x2xf32>) -> tensor<4x10xf32>
    %6 = stablehlo.dynamic_pad %arg0, %arg4, %arg2, %arg2, %arg2 : (tensor<4x6xf32>, tensor<f32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi64>) -> tensor<?x?xf32>
    %7 = stablehlo.dynamic_reshape %arg0, %arg2 : (tensor<4x6xf32>, tensor<2xi64>) -> tensor<?x?xf32>
    %8 = stablehlo.dynamic_slice %arg0, %arg3, %arg3, sizes = [2, 3] : (tensor<4x6xf32>, tensor<i32>, tensor<i32>) -> tensor<2x3xf32>
    %9 = stablehlo.dynamic_update_slice %arg0, %arg1, %arg3, %arg3 : (tensor<4x6xf32>, tensor<4x2xf32>, tensor<i32>, tensor<i32>) -> tensor<4x6xf32>
    %10 = stablehlo.get_dimension_size %arg5, dim = 1 : (tensor<?x?xf32>) -> tensor<i32>
    %11 = stablehlo.pad %arg0, %arg4, low = [1, -1], high = [0, 2], interior = [1, 0] : (tensor<4x6xf32>, tensor<f32>) -> tensor<8x7xf32>
    %12 = stablehlo.real_dynamic_slice %arg0, %arg2, %arg2, %arg2 : (tensor<4x6xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi64>) -> tensor<?x?xf32>
    %13 = stablehlo.reshape %arg0 : (tensor<4x6xf32>) -> tensor<24xf32>
    %14 = stablehlo.reverse %arg0, dims = [1] : tensor<4x6xf32>
    %15 = stablehlo.set_dimension_size %arg0, %arg3, dim = 0 : (tensor<4x6xf32>, tensor<i32>) -> tensor<?x6xf32, #stablehlo.bounds<4, ?>>
    %16 = stablehlo.slice %arg0 [0:4, 1:6:2] : (tensor<4x6xf32>) -> tensor<4x3xf32>
    %17 = stablehlo.transpose %arg0, dims = [1, 0] : (tensor<4x6xf32>) -> tensor<6x4xf32>
    %18 = "stablehlo.gather"(%arg0, %arg2) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = true, slice_sizes = array<i64: 1, 6>}> : (tensor<4x6xf32>, tensor<2xi64>) -> tensor<2x6xf32>
    %19 = stablehlo.slice %arg0 [0:2, 0:6] : (tensor<4x6xf32>) -> tensor<2x6xf32>
    %20 = "stablehlo.scatter"(%arg0, %arg2, %19) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = true}> ({
    ^bb0(%arg6: tensor<f32>, %arg7: tensor<f32>):
      %21 = stablehlo.add %arg6, %arg7 : tensor<f32>
      stablehlo.return %21 : tensor<f32>
    }) : (tensor<4x6xf32>, tensor<2xi64>, tensor<2x6xf32>) -> tensor<4x6xf32>
    return
  }
  func.func @products(%arg0: tensor<2x3x4xf32>, %arg1: tensor<2x4x5xf32>, %arg2: tensor<3x4xf32>, %arg3: tensor<4x5xf32>, %arg4: tensor<1x8x8x3xf32>, %arg5: tensor<3x3x3x4xf32>, %arg6: tensor<3x3xf32>, %arg7: tensor<2x3x4xbf16>, %arg8: tensor<2x4x5xbf16>) {
    %0 = stablehlo.dot %arg2, %arg3, precision = [DEFAULT, HIGHEST] : (tensor<3x4xf32>, tensor<4x5xf32>) -> tensor<3x5xf32>
    %1 = stablehlo.dot %arg2, %arg3 : (tensor<3x4xf32>, tensor<4x5xf32>) -> tensor<3x5xf32>
    %2 = stablehlo.dot_general %arg0, %arg1, batching_dims = [0] x [0], contracting_dims = [2] x [1], precision = [DEFAULT, HIGHEST] : (tensor<2x3x4xf32>, tensor<2x4x5xf32>) -> tensor<2x3x5xf32>
    %3 = stablehlo.dot_general %arg2, %arg3, contracting_dims = [1] x [0] : (tensor<3x4xf32>, tensor<4x5xf32>) -> tensor<3x5xf32>
    %4 = stablehlo.dot_general %arg7, %arg8, batching_dims = [0] x [0], contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT], algorithm = <lhs_precision_type = bf16, rhs_precision_type = bf16, accumulation_type = f32, lhs_component_count = 1, rhs_component_count = 1, num_primitive_operations = 1, allow_imprecise_accumulation = false> : (tensor<2x3x4xbf16>, tensor<2x4x5xbf16>) -> tensor<2x3x5xf32>
    %5 = stablehlo.einsum %arg2, %arg3, config = "ab,bc->ac" : (tensor<3x4xf32>, tensor<4x5xf32>) -> tensor<3x5xf32>
    %6 = stablehlo.unary_einsum %arg2, config = "ab->a" : (tensor<3x4xf32>) -> tensor<3xf32>
    %7 = stablehlo.convolution(%arg4, %arg5) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [1, 1], pad = [[1, 1], [1, 1]], lhs_dilate = [1, 1], rhs_dilate = [1, 1], reverse = [false, true]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<1x8x8x3xf32>, tensor<3x3x3x4xf32>) -> tensor<1x8x8x4xf32>
    %8 = stablehlo.convolution(%arg4, %arg5) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<1x8x8x3xf32>, tensor<3x3x3x4xf32>) -> tensor<1x6x6x4xf32>
    %9 = stablehlo.cholesky %arg6, lower = true : tensor<3x3xf32>
    %10 = stablehlo.cholesky %arg6 : tensor<3x3xf32>
    %11 = "stablehlo.triangular_solve"(%arg6, %arg6) <{left_side = true, lower = true, transpose_a = #stablehlo<transpose NO_TRANSPOSE>, unit_diagonal = false}> : (tensor<3x3xf32>, tensor<3x3xf32>) -> tensor<3x3xf32>
    %12 = stablehlo.fft %arg6, type = RFFT, length = [3] : (tensor<3x3xf32>) -> tensor<3x2xcomplex<f32>>
    return
  }
  func.func @regions(%arg0: tensor<4x6xf32>, %arg1: tensor<4x6xi32>, %arg2: tensor<f32>, %arg3: tensor<i32>, %arg4: tensor<i1>) -> tensor<4xf32> {
    %0 = stablehlo.reduce(%arg0 init: %arg2) applies stablehlo.maximum across dimensions = [1] : (tensor<4x6xf32>, tensor<f32>) -> tensor<4xf32>
    %1:2 = stablehlo.reduce(%arg0 init: %arg2), (%arg1 init: %arg3) across dimensions = [1] {note} : (tensor<4x6xf32>, tensor<4x6xi32>, tensor<f32>, tensor<i32>) -> (tensor<4xf32>, tensor<4xi32>)
     reducer(%arg5: tensor<f32>, %arg7: tensor<f32>) (%arg6: tensor<i32>, %arg8: tensor<i32>)  {
      %8 = stablehlo.compare GT, %arg5, %arg7 : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %9 = stablehlo.select %8, %arg5, %arg7 : tensor<i1>, tensor<f32>
      %10 = stablehlo.select %8, %arg6, %arg8 : tensor<i1>, tensor<i32>
      stablehlo.return %9, %10 : tensor<f32>, tensor<i32>
    }
    %2 = "stablehlo.reduce_window"(%arg0, %arg2) <{padding = dense<[[0, 0], [1, 1]]> : tensor<2x2xi64>, window_dimensions = array<i64: 1, 2>, window_strides = array<i64: 1, 2>}> ({
    ^bb0(%arg5: tensor<f32>, %arg6: tensor<f32>):
      %8 = stablehlo.add %arg5, %arg6 : tensor<f32>
      stablehlo.return %8 : tensor<f32>
    }) : (tensor<4x6xf32>, tensor<f32>) -> tensor<4x4xf32>
    %3 = "stablehlo.sort"(%arg0) <{dimension = 1 : i64, is_stable = true}> ({
    ^bb0(%arg5: tensor<f32>, %arg6: tensor<f32>):
      %8 = stablehlo.compare LT, %arg5, %arg6 : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %8 : tensor<i1>
    }) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %4 = "stablehlo.map"(%arg0) <{dimensions = array<i64: 0, 1>}> ({
    ^bb0(%arg5: tensor<f32>):
      %8 = stablehlo.tanh %arg5 : tensor<f32>
      stablehlo.return %8 : tensor<f32>
    }) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %5 = "stablehlo.if"(%arg4) ({
      stablehlo.return %arg0 : tensor<4x6xf32>
    }, {
      stablehlo.return %4 : tensor<4x6xf32>
    }) : (tensor<i1>) -> tensor<4x6xf32>
    %6 = "stablehlo.case"(%arg3) ({
      stablehlo.return %arg0 : tensor<4x6xf32>
    }, {
      %8 = func.call @unit(%arg0) : (tensor<4x6xf32>) -> tensor<4x6xf32>
      stablehlo.return %8 : tensor<4x6xf32>
    }) : (tensor<i32>) -> tensor<4x6xf32>
    %7:2 = stablehlo.while(%iterArg = %arg3, %iterArg_0 = %arg0) : tensor<i32>, tensor<4x6xf32> attributes {mhlo.note = "loop"}
    cond {
      %8 = stablehlo.compare LT, %iterArg, %arg3, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %8 : tensor<i1>
    } do {
      %8 = stablehlo.add %iterArg, %iterArg : tensor<i32>
      stablehlo.return %8, %iterArg_0 : tensor<i32>, tensor<4x6xf32>
    }
    stablehlo.while()
    cond {
      stablehlo.return %arg4 : tensor<i1>
    } do {
      stablehlo.return 
    }
    return %0 : tensor<4xf32>
  }
  func.func private @unit(%arg0: tensor<4x6xf32>) -> tensor<4x6xf32> {
    return %arg0 : tensor<4x6xf32>
  }
  func.func @calls(%arg0: tensor<4x6xf32>, %arg1: tensor<4xui64>, %arg2: tensor<2xi64>, %arg3: tensor<f32>) {
    %0 = stablehlo.tuple %arg0, %arg3 : tuple<tensor<4x6xf32>, tensor<f32>>
    %1 = stablehlo.get_tuple_element %0[1] : (tuple<tensor<4x6xf32>, tensor<f32>>) -> tensor<f32>
    %2:2 = stablehlo.optimization_barrier %arg0, %arg3 : tensor<4x6xf32>, tensor<f32>
    stablehlo.optimization_barrier()
    %3 = stablehlo.composite "my.unit" %arg0 {composite_attributes = {scale = 2.000000e-01 : f32}, decomposition = @unit, version = 1 : i32} : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %4 = stablehlo.custom_call @my.call(%arg0, %arg3) {api_version = 4 : i32, backend_config = {count = 3 : i64, words = ["a", "b"]}, has_side_effect = true, mhlo.sharding = "{replicated}", operand_layouts = [dense<[1, 0]> : tensor<2xindex>, dense<> : tensor<0xindex>], result_layouts = [dense<[0, 1]> : tensor<2xindex>]} : (tensor<4x6xf32>, tensor<f32>) -> tensor<4x6xf32>
    %5 = stablehlo.custom_call @"not-an-identifier"() : () -> tensor<i32>
    %6 = stablehlo.rng %arg3, %arg3, %arg2, distribution = NORMAL : (tensor<f32>, tensor<f32>, tensor<2xi64>) -> tensor<?x?xf32>
    %output_state, %output = stablehlo.rng_bit_generator %arg1, algorithm = THREE_FRY : (tensor<4xui64>) -> (tensor<4xui64>, tensor<3xui32>)
    %7 = "stablehlo.all_reduce"(%arg0) <{channel_handle = #stablehlo.channel_handle<handle = 5, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> ({
    ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
      %8 = stablehlo.add %arg4, %arg5 : tensor<f32>
      stablehlo.return %8 : tensor<f32>
    }) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    return
  }
  func.func @chlo(%arg0: tensor<4x6xf32>, %arg1: tensor<6xf32>, %arg2: tensor<4x6xi32>, %arg3: tensor<4x6xi1>) {
    %0 = chlo.acos %arg0 : tensor<4x6xf32> -> tensor<4x6xf32>
    %1 = chlo.acosh %arg0 : tensor<4x6xf32> -> tensor<4x6xf32>
    %2 = chlo.asin %arg0 : tensor<4x6xf32> -> tensor<4x6xf32>
    %3 = chlo.asinh %arg0 : tensor<4x6xf32> -> tensor<4x6xf32>
    %4 = chlo.atan %arg0 : tensor<4x6xf32> -> tensor<4x6xf32>
    %5 = chlo.atanh %arg0 : tensor<4x6xf32> -> tensor<4x6xf32>
    %6 = chlo.bessel_i1e %arg0 : tensor<4x6xf32> -> tensor<4x6xf32>
    %7 = chlo.conj %arg0 : tensor<4x6xf32> -> tensor<4x6xf32>
    %8 = chlo.cosh %arg0 : tensor<4x6xf32> -> tensor<4x6xf32>
    %9 = chlo.digamma %arg0 : tensor<4x6xf32> -> tensor<4x6xf32>
    %10 = chlo.erf %arg0 : tensor<4x6xf32> -> tensor<4x6xf32>
    %11 = chlo.erf_inv %arg0 : tensor<4x6xf32> -> tensor<4x6xf32>
    %12 = chlo.erfc %arg0 : tensor<4x6xf32> -> tensor<4x6xf32>
    %13 = chlo.lgamma %arg0 : tensor<4x6xf32> -> tensor<4x6xf32>
    %14 = chlo.sinh %arg0 : tensor<4x6xf32> -> tensor<4x6xf32>
    %15 = chlo.square %arg0 : tensor<4x6xf32> -> tensor<4x6xf32>
    %16 = chlo.tan %arg0 : tensor<4x6xf32> -> tensor<4x6xf32>
    %17 = chlo.is_inf %arg0 : tensor<4x6xf32> -> tensor<4x6xi1>
    %18 = chlo.is_neg_inf %arg0 : tensor<4x6xf32> -> tensor<4x6xi1>
    %19 = chlo.is_pos_inf %arg0 : tensor<4x6xf32> -> tensor<4x6xi1>
    %20 = chlo.next_after %arg0, %arg0 : tensor<4x6xf32>, tensor<4x6xf32> -> tensor<4x6xf32>
    %21 = chlo.polygamma %arg0, %arg0 : tensor<4x6xf32>, tensor<4x6xf32> -> tensor<4x6xf32>
    %22 = chlo.zeta %arg0, %arg0 : tensor<4x6xf32>, tensor<4x6xf32> -> tensor<4x6xf32>
    %23 = chlo.broadcast_add %arg0, %arg1 {broadcast_dimensions = array<i64: 1>} : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>
    %24 = chlo.broadcast_atan2 %arg0, %arg1 {broadcast_dimensions = array<i64: 1>} : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>
    %25 = chlo.broadcast_divide %arg0, %arg1 {broadcast_dimensions = array<i64: 1>} : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>
    %26 = chlo.broadcast_maximum %arg0, %arg1 {broadcast_dimensions = array<i64: 1>} : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>
    %27 = chlo.broadcast_minimum %arg0, %arg1 {broadcast_dimensions = array<i64: 1>} : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>
    %28 = chlo.broadcast_multiply %arg0, %arg1 {broadcast_dimensions = array<i64: 1>} : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>
    %29 = chlo.broadcast_next_after %arg0, %arg1 {broadcast_dimensions = array<i64: 1>} : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>
    %30 = chlo.broadcast_polygamma %arg0, %arg1 {broadcast_dimensions = array<i64: 1>} : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>
    %31 = chlo.broadcast_power %arg0, %arg1 {broadcast_dimensions = array<i64: 1>} : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>
    %32 = chlo.broadcast_remainder %arg0, %arg1 {broadcast_dimensions = array<i64: 1>} : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>
    %33 = chlo.broadcast_subtract %arg0, %arg1 {broadcast_dimensions = array<i64: 1>} : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>
    %34 = chlo.broadcast_zeta %arg0, %arg1 {broadcast_dimensions = array<i64: 1>} : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>
    %35 = chlo.broadcast_and %arg2, %arg2 : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi32>
    %36 = chlo.broadcast_or %arg2, %arg2 : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi32>
    %37 = chlo.broadcast_xor %arg2, %arg2 : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi32>
    %38 = chlo.broadcast_shift_left %arg2, %arg2 : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi32>
    %39 = chlo.broadcast_shift_right_arithmetic %arg2, %arg2 : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi32>
    %40 = chlo.broadcast_shift_right_logical %arg2, %arg2 : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi32>
    %41 = chlo.broadcast_compare %arg0, %arg1 {comparison_direction = #chlo<comparison_direction GE>} : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xi1>
    %42 = chlo.broadcast_select %arg3, %arg0, %arg0 : (tensor<4x6xi1>, tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %values, %indices = chlo.top_k(%arg0, k = 2) : tensor<4x6xf32> -> (tensor<4x2xf32>, tensor<4x2xi32>)
    %43 = chlo.mulhi %arg2, %arg2 : tensor<4x6xi32>, tensor<4x6xi32> -> tensor<4x6xi32>
    %44 = chlo.broadcast_complex %arg0, %arg1 : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xcomplex<f32>>
    %45 = chlo.constant dense<1> : tensor<2xi32>
    return
  }
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func @sdy(%arg0: tensor<4x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}, {?}p2], replicated={"y"}>}) -> tensor<4x6xf32> {
    %0 = sdy.sharding_constraint %arg0 <@mesh, [{"x"}, {}]> : tensor<4x6xf32>
    %1 = sdy.reshard %0 <@mesh, [{"y":(1)2}, {}]> : tensor<4x6xf32>
    sdy.sharding_group %1 group_id=21 : tensor<4x6xf32>
    %2 = sdy.manual_computation(%1) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x"} (%arg1: tensor<2x6xf32>) {
      %3 = stablehlo.add %arg1, %arg1 : tensor<2x6xf32>
      sdy.return %3 : tensor<2x6xf32>
    } : (tensor<4x6xf32>) -> tensor<4x6xf32>
    return %2 : tensor<4x6xf32>
  }
}
