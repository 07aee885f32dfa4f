"builtin.module"() ({
  "func.func"() <{function_type = (tensor<4x6xf32>, tensor<4x6xi32>) -> (), sym_name = "unary"}> ({
  ^bb0(%arg52: tensor<4x6xf32>, %arg53: tensor<4x6xi32>):
    %100 = "stablehlo.abs"(%arg52) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %101 = "stablehlo.cbrt"(%arg52) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %102 = "stablehlo.ceil"(%arg52) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %103 = "stablehlo.cosine"(%arg52) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %104 = "stablehlo.exponential"(%arg52) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %105 = "stablehlo.exponential_minus_one"(%arg52) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %106 = "stablehlo.floor"(%arg52) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %107 = "stablehlo.log"(%arg52) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %108 = "stablehlo.log_plus_one"(%arg52) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %109 = "stablehlo.logistic"(%arg52) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %110 = "stablehlo.negate"(%arg52) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %111 = "stablehlo.round_nearest_afz"(%arg52) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %112 = "stablehlo.round_nearest_even"(%arg52) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %113 = "stablehlo.rsqrt"(%arg52) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %114 = "stablehlo.sign"(%arg52) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %115 = "stablehlo.sine"(%arg52) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %116 = "stablehlo.sqrt"(%arg52) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %117 = "stablehlo.tan"(%arg52) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %118 = "stablehlo.tanh"(%arg52) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %119 = "stablehlo.count_leading_zeros"(%arg53) : (tensor<4x6xi32>) -> tensor<4x6xi32>
    %120 = "stablehlo.not"(%arg53) : (tensor<4x6xi32>) -> tensor<4x6xi32>
    %121 = "stablehlo.popcnt"(%arg53) : (tensor<4x6xi32>) -> tensor<4x6xi32>
    "func.return"() : () -> ()
  }) : () -> ()
  "func.func"() <{function_type = (tensor<4x6xf32>, tensor<4x6xi32>) -> (), sym_name = "binary"}> ({
  ^bb0(%arg50: tensor<4x6xf32>, %arg51: tensor<4x6xi32>):
    %85 = "stablehlo.add"(%arg50, %arg50) : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %86 = "stablehlo.atan2"(%arg50, %arg50) : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %87 = "stablehlo.divide"(%arg50, %arg50) : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %88 = "stablehlo.maximum"(%arg50, %arg50) : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %89 = "stablehlo.minimum"(%arg50, %arg50) : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %90 = "stablehlo.multiply"(%arg50, %arg50) : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %91 = "stablehlo.power"(%arg50, %arg50) : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %92 = "stablehlo.remainder"(%arg50, %arg50) : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %93 = "stablehlo.subtract"(%arg50, %arg50) : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %94 = "stablehlo.and"(%arg51, %arg51) : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi32>
    %95 = "stablehlo.or"(%arg51, %arg51) : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi32>
    %96 = "stablehlo.xor"(%arg51, %arg51) : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi32>
    %97 = "stablehlo.shift_left"(%arg51, %arg51) : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi32>
    %98 = "stablehlo.shift_right_arithmetic"(%arg51, %arg51) : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi32>
    %99 = "stablehlo.shift_right_logical"(%arg51, %arg51) : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi32>
    "func.return"() : () -> ()
  }) : () -> ()
  "func.func"() <{function_type = (tensor<4x6xf32>, tensor<4x6xi32>, tensor<4x6xi1>, tensor<f32>, tensor<i1>) -> (), sym_name = "elementwise"}> ({
  ^bb0(%arg45: tensor<4x6xf32>, %arg46: tensor<4x6xi32>, %arg47: tensor<4x6xi1>, %arg48: tensor<f32>, %arg49: tensor<i1>):
    %71 = "stablehlo.convert"(%arg45) : (tensor<4x6xf32>) -> tensor<4x6xbf16>
    %72 = "stablehlo.is_finite"(%arg45) : (tensor<4x6xf32>) -> tensor<4x6xi1>
    %73 = "stablehlo.complex"(%arg45, %arg45) : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xcomplex<f32>>
    %74 = "stablehlo.real"(%73) : (tensor<4x6xcomplex<f32>>) -> tensor<4x6xf32>
    %75 = "stablehlo.imag"(%73) : (tensor<4x6xcomplex<f32>>) -> tensor<4x6xf32>
    %76 = "stablehlo.reduce_precision"(%arg45) <{exponent_bits = 8 : i32, mantissa_bits = 10 : i32}> : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %77 = "stablehlo.compare"(%arg45, %arg45) <{compare_type = #stablehlo<comparison_type TOTALORDER>, comparison_direction = #stablehlo<comparison_direction LT>}> : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xi1>
    %78 = "stablehlo.compare"(%arg46, %arg46) <{comparison_direction = #stablehlo<comparison_direction NE>}> : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi1>
    %79 = "stablehlo.clamp"(%arg48, %arg45, %arg48) : (tensor<f32>, tensor<4x6xf32>, tensor<f32>) -> tensor<4x6xf32>
    %80 = "stablehlo.clamp"(%arg45, %arg45, %arg45) : (tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %81 = "stablehlo.select"(%arg47, %arg45, %arg45) : (tensor<4x6xi1>, tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %82 = "stablehlo.select"(%arg49, %arg45, %arg45) : (tensor<i1>, tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %83 = "stablehlo.exponential"(%arg45) <{result_accuracy = #stablehlo.result_accuracy<atol = 1.000000e-05, ulps = 2, mode = #stablehlo.result_accuracy_mode<TOLERANCE>>}> {note = "kept"} : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %84 = "stablehlo.add"(%arg45, %arg45) {mhlo.frontend_attributes = {a = "b"}} : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    "func.return"() : () -> ()
  }) : () -> ()
  "func.func"() <{function_type = (tensor<2xi64>) -> (), sym_name = "sources"}> ({
  ^bb0(%arg44: tensor<2xi64>):
    %63 = "stablehlo.constant"() <{value = dense<[[1.000000e+00, 0xFF800000], [2.500000e+00, 0x7FC00000]]> : tensor<2x2xf32>}> : () -> tensor<2x2xf32>
    %64 = "stablehlo.constant"() <{value = dense<true> : tensor<3xi1>}> {note = 1 : i32} : () -> tensor<3xi1>
    %65 = "stablehlo.iota"() <{iota_dimension = 1 : i64}> : () -> tensor<2x3xi32>
    %66 = "stablehlo.dynamic_iota"(%arg44) <{iota_dimension = 0 : i64}> : (tensor<2xi64>) -> tensor<?x?xf32>
    %67 = "stablehlo.create_token"() : () -> !stablehlo.token
    %68 = "stablehlo.partition_id"() : () -> tensor<ui32>
    %69 = "stablehlo.replica_id"() : () -> tensor<ui32>
    %70 = "stablehlo.after_all"(%67, %67) : (!stablehlo.token, !stablehlo.token) -> !stablehlo.token
    "func.return"() : () -> ()
  }) : () -> ()
  "func.func"() <{function_type = (tensor<4x6xf32>, tensor<4x2xf32>, tensor<2xi64>, tensor<i32>, tensor<f32>, tensor<?x?xf32>) -> (), sym_name = "shapes"}> ({
  ^bb0(%arg36: tensor<4x6xf32>, %arg37: tensor<4x2xf32>, %arg38: tensor<2xi64>, %arg39: tensor<i32>, %arg40: tensor<f32>, %arg41: tensor<?x?xf32>):
    %41 = "stablehlo.bitcast_convert"(%arg36) : (tensor<4x6xf32>) -> tensor<4x6xi32>
    %42 = "stablehlo.broadcast"(%arg36) <{broadcast_sizes = array<i64: 2>}> : (tensor<4x6xf32>) -> tensor<2x4x6xf32>
    %43 = "stablehlo.broadcast_in_dim"(%arg36) <{broadcast_dimensions = array<i64: 2, 0>}> : (tensor<4x6xf32>) -> tensor<6x3x4xf32>
    %44 = "stablehlo.broadcast_in_dim"(%arg40) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<2xf32>
    %45 = "stablehlo.dynamic_broadcast_in_dim"(%arg36, %arg38) <{broadcast_dimensions = array<i64: 0, 1>, known_nonexpanding_dimensions = array<i64: 0, 1>}> : (tensor<4x6xf32>, tensor<2xi64>) -> tensor<4x6xf32>
    %46 = "stablehlo.concatenate"(%arg36, %arg37, %arg37) <{dimension = 1 : i64}> : (tensor<4x6xf32>, tensor<4x2xf32>, tensor<4x2xf32>) -> tensor<4x10xf32>
    %47 = "stablehlo.dynamic_pad"(%arg36, %arg40, %arg38, %arg38, %arg38) : (tensor<4x6xf32>, tensor<f32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi64>) -> tensor<?x?xf32>
    %48 = "stablehlo.dynamic_reshape"(%arg36, %arg38) : (tensor<4x6xf32>, tensor<2xi64>) -> tensor<?x?xf32>
    %49 = "stablehlo.dynamic_slice"(%arg36, %arg39, %arg39) <{slice_sizes = array<i64: 2, 3>}> : (tensor<4x6xf32>, tensor<i32>, tensor<i32>) -> tensor<2x3xf32>
    %50 = "stablehlo.dynamic_update_slice"(%arg36, %arg37, %arg39, %arg39) : (tensor<4x6xf32>, tensor<4x2xf32>, tensor<i32>, tensor<i32>) -> tensor<4x6xf32>
    %51 = "stablehlo.get_dimension_size"(%arg41) <{dimension = 1 : i64}> : (tensor<?x?xf32>) -> tensor<i32>
    %52 = "stablehlo.pad"(%arg36, %arg40) <{edge_padding_high = array<i64: 0, 2>, edge_padding_low = array<i64: 1, -1>, interior_padding = array<i64: 1, 0>}> : (tensor<4x6xf32>, tensor<f32>) -> tensor<8x7xf32>
    %53 = "stablehlo.real_dynamic_slice"(%arg36, %arg38, %arg38, %arg38) : (tensor<4x6xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi64>) -> tensor<?x?xf32>
    %54 = "stablehlo.reshape"(%arg36) : (tensor<4x6xf32>) -> tensor<24xf32>
    %55 = "stablehlo.reverse"(%arg36) <{dimensions = array<i64: 1>}> : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %56 = "stablehlo.set_dimension_size"(%arg36, %arg39) <{dimension = 0 : i64}> : (tensor<4x6xf32>, tensor<i32>) -> tensor<?x6xf32, #stablehlo.bounds<4, ?>>
    %57 = "stablehlo.slice"(%arg36) <{limit_indices = array<i64: 4, 6>, start_indices = array<i64: 0, 1>, strides = array<i64: 1, 2>}> : (tensor<4x6xf32>) -> tensor<4x3xf32>
    %58 = "stablehlo.transpose"(%arg36) <{permutation = array<i64: 1, 0>}> : (tensor<4x6xf32>) -> tensor<6x4xf32>
    %59 = "stablehlo.gather"(%arg36, %arg38) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = true, slice_sizes = array<i64: 1, 6>}> : (tensor<4x6xf32>, tensor<2xi64>) -> tensor<2x6xf32>
    %60 = "stablehlo.slice"(%arg36) <{limit_indices = array<i64: 2, 6>, start_indices = array<i64: 0, 0>, strides = array<i64: 1, 1>}> : (tensor<4x6xf32>) -> tensor<2x6xf32>
    %61 = "stablehlo.scatter"(%arg36, %arg38, %60) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = true}> ({
    ^bb0(%arg42: tensor<f32>, %arg43: tensor<f32>):
      %62 = "stablehlo.add"(%arg42, %arg43) : (tensor<f32>, tensor<f32>) -> tensor<f32>
      "stablehlo.return"(%62) : (tensor<f32>) -> ()
    }) : (tensor<4x6xf32>, tensor<2xi64>, tensor<2x6xf32>) -> tensor<4x6xf32>
    "func.return"() : () -> ()
  }) : () -> ()
  "func.func"() <{function_type = (tensor<2x3x4xf32>, tensor<2x4x5xf32>, tensor<3x4xf32>, tensor<4x5xf32>, tensor<1x8x8x3xf32>, tensor<3x3x3x4xf32>, tensor<3x3xf32>, tensor<2x3x4xbf16>, tensor<2x4x5xbf16>) -> (), sym_name = "products"}> ({
  ^bb0(%arg27: tensor<2x3x4xf32>, %arg28: tensor<2x4x5xf32>, %arg29: tensor<3x4xf32>, %arg30: tensor<4x5xf32>, %arg31: tensor<1x8x8x3xf32>, %arg32: tensor<3x3x3x4xf32>, %arg33: tensor<3x3xf32>, %arg34: tensor<2x3x4xbf16>, %arg35: tensor<2x4x5xbf16>):
    %28 = "stablehlo.dot"(%arg29, %arg30) <{precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision HIGHEST>]}> : (tensor<3x4xf32>, tensor<4x5xf32>) -> tensor<3x5xf32>
    %29 = "stablehlo.dot"(%arg29, %arg30) : (tensor<3x4xf32>, tensor<4x5xf32>) -> tensor<3x5xf32>
    %30 = "stablehlo.dot_general"(%arg27, %arg28) <{dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = [0], rhs_batching_dimensions = [0], lhs_contracting_dimensions = [2], rhs_contracting_dimensions = [1]>, precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision HIGHEST>]}> : (tensor<2x3x4xf32>, tensor<2x4x5xf32>) -> tensor<2x3x5xf32>
    %31 = "stablehlo.dot_general"(%arg29, %arg30) <{dot_dimension_numbers = #stablehlo.dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [0]>}> : (tensor<3x4xf32>, tensor<4x5xf32>) -> tensor<3x5xf32>
    %32 = "stablehlo.dot_general"(%arg34, %arg35) <{algorithm = #stablehlo.dot_algorithm<lhs_precision_type = bf16, rhs_precision_type = bf16, accumulation_type = f32, lhs_component_count = 1, rhs_component_count = 1, num_primitive_operations = 1, allow_imprecise_accumulation = false>, dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = [0], rhs_batching_dimensions = [0], lhs_contracting_dimensions = [2], rhs_contracting_dimensions = [1]>}> : (tensor<2x3x4xbf16>, tensor<2x4x5xbf16>) -> tensor<2x3x5xf32>
    %33 = "stablehlo.einsum"(%arg29, %arg30) <{einsum_config = "ab,bc->ac"}> : (tensor<3x4xf32>, tensor<4x5xf32>) -> tensor<3x5xf32>
    %34 = "stablehlo.unary_einsum"(%arg29) <{einsum_config = "ab->a"}> : (tensor<3x4xf32>) -> tensor<3xf32>
    %35 = "stablehlo.convolution"(%arg31, %arg32) <{batch_group_count = 1 : i64, dimension_numbers = #stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>, feature_group_count = 1 : i64, padding = dense<1> : tensor<2x2xi64>, window_reversal = array<i1: false, true>}> : (tensor<1x8x8x3xf32>, tensor<3x3x3x4xf32>) -> tensor<1x8x8x4xf32>
    %36 = "stablehlo.convolution"(%arg31, %arg32) <{batch_group_count = 1 : i64, dimension_numbers = #stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>, feature_group_count = 1 : i64}> : (tensor<1x8x8x3xf32>, tensor<3x3x3x4xf32>) -> tensor<1x6x6x4xf32>
    %37 = "stablehlo.cholesky"(%arg33) <{lower = true}> : (tensor<3x3xf32>) -> tensor<3x3xf32>
    %38 = "stablehlo.cholesky"(%arg33) : (tensor<3x3xf32>) -> tensor<3x3xf32>
    %39 = "stablehlo.triangular_solve"(%arg33, %arg33) <{left_side = true, lower = true, transpose_a = #stablehlo<transpose NO_TRANSPOSE>, unit_diagonal = false}> : (tensor<3x3xf32>, tensor<3x3xf32>) -> tensor<3x3xf32>
    %40 = "stablehlo.fft"(%arg33) <{fft_length = array<i64: 3>, fft_type = #stablehlo<fft_type RFFT>}> : (tensor<3x3xf32>) -> tensor<3x2xcomplex<f32>>
    "func.return"() : () -> ()
  }) : () -> ()
  "func.func"() <{function_type = (tensor<4x6xf32>, tensor<4x6xi32>, tensor<f32>, tensor<i32>, tensor<i1>) -> tensor<4xf32>, sym_name = "regions"}> ({
  ^bb0(%arg7: tensor<4x6xf32>, %arg8: tensor<4x6xi32>, %arg9: tensor<f32>, %arg10: tensor<i32>, %arg11: tensor<i1>):
    %10 = "stablehlo.reduce"(%arg7, %arg9) <{dimensions = array<i64: 1>}> ({
    ^bb0(%arg25: tensor<f32>, %arg26: tensor<f32>):
      %27 = "stablehlo.maximum"(%arg25, %arg26) : (tensor<f32>, tensor<f32>) -> tensor<f32>
      "stablehlo.return"(%27) : (tensor<f32>) -> ()
    }) : (tensor<4x6xf32>, tensor<f32>) -> tensor<4xf32>
    %11:2 = "stablehlo.reduce"(%arg7, %arg8, %arg9, %arg10) <{dimensions = array<i64: 1>}> ({
    ^bb0(%arg21: tensor<f32>, %arg22: tensor<i32>, %arg23: tensor<f32>, %arg24: tensor<i32>):
      %24 = "stablehlo.compare"(%arg21, %arg23) <{comparison_direction = #stablehlo<comparison_direction GT>}> : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %25 = "stablehlo.select"(%24, %arg21, %arg23) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
      %26 = "stablehlo.select"(%24, %arg22, %arg24) : (tensor<i1>, tensor<i32>, tensor<i32>) -> tensor<i32>
      "stablehlo.return"(%25, %26) : (tensor<f32>, tensor<i32>) -> ()
    }) : (tensor<4x6xf32>, tensor<4x6xi32>, tensor<f32>, tensor<i32>) -> (tensor<4xf32>, tensor<4xi32>)
    %12 = "stablehlo.reduce_window"(%arg7, %arg9) <{padding = dense<[[0, 0], [1, 1]]> : tensor<2x2xi64>, window_dimensions = array<i64: 1, 2>, window_strides = array<i64: 1, 2>}> ({
    ^bb0(%arg19: tensor<f32>, %arg20: tensor<f32>):
      %23 = "stablehlo.add"(%arg19, %arg20) : (tensor<f32>, tensor<f32>) -> tensor<f32>
      "stablehlo.return"(%23) : (tensor<f32>) -> ()
    }) : (tensor<4x6xf32>, tensor<f32>) -> tensor<4x4xf32>
    %13 = "stablehlo.sort"(%arg7) <{dimension = 1 : i64, is_stable = true}> ({
    ^bb0(%arg17: tensor<f32>, %arg18: tensor<f32>):
      %22 = "stablehlo.compare"(%arg17, %arg18) <{comparison_direction = #stablehlo<comparison_direction LT>}> : (tensor<f32>, tensor<f32>) -> tensor<i1>
      "stablehlo.return"(%22) : (tensor<i1>) -> ()
    }) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %14 = "stablehlo.map"(%arg7) <{dimensions = array<i64: 0, 1>}> ({
    ^bb0(%arg16: tensor<f32>):
      %21 = "stablehlo.tanh"(%arg16) : (tensor<f32>) -> tensor<f32>
      "stablehlo.return"(%21) : (tensor<f32>) -> ()
    }) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %15 = "stablehlo.if"(%arg11) ({
      "stablehlo.return"(%arg7) : (tensor<4x6xf32>) -> ()
    }, {
      "stablehlo.return"(%14) : (tensor<4x6xf32>) -> ()
    }) : (tensor<i1>) -> tensor<4x6xf32>
    %16 = "stablehlo.case"(%arg10) ({
      "stablehlo.return"(%arg7) : (tensor<4x6xf32>) -> ()
    }, {
      %20 = "func.call"(%arg7) <{callee = @unit}> : (tensor<4x6xf32>) -> tensor<4x6xf32>
      "stablehlo.return"(%20) : (tensor<4x6xf32>) -> ()
    }) : (tensor<i32>) -> tensor<4x6xf32>
    %17:2 = "stablehlo.while"(%arg10, %arg7) ({
    ^bb0(%arg14: tensor<i32>, %arg15: tensor<4x6xf32>):
      %19 = "stablehlo.compare"(%arg14, %arg10) <{compare_type = #stablehlo<comparison_type SIGNED>, comparison_direction = #stablehlo<comparison_direction LT>}> : (tensor<i32>, tensor<i32>) -> tensor<i1>
      "stablehlo.return"(%19) : (tensor<i1>) -> ()
    }, {
    ^bb0(%arg12: tensor<i32>, %arg13: tensor<4x6xf32>):
      %18 = "stablehlo.add"(%arg12, %arg12) : (tensor<i32>, tensor<i32>) -> tensor<i32>
      "stablehlo.return"(%18, %arg13) : (tensor<i32>, tensor<4x6xf32>) -> ()
    }) {mhlo.note = "loop"} : (tensor<i32>, tensor<4x6xf32>) -> (tensor<i32>, tensor<4x6xf32>)
    "stablehlo.while"() ({
      "stablehlo.return"(%arg11) : (tensor<i1>) -> ()
    }, {
      "stablehlo.return"() : () -> ()
    }) : () -> ()
    "func.return"(%10) : (tensor<4xf32>) -> ()
  }) : () -> ()
  "func.func"() <{function_type = (tensor<4x6xf32>) -> tensor<4x6xf32>, sym_name = "unit", sym_visibility = "private"}> ({
  ^bb0(%arg6: tensor<4x6xf32>):
    "func.return"(%arg6) : (tensor<4x6xf32>) -> ()
  }) : () -> ()
  "func.func"() <{function_type = (tensor<4x6xf32>, tensor<4xui64>, tensor<2xi64>, tensor<f32>) -> (), sym_name = "calls"}> ({
  ^bb0(%arg0: tensor<4x6xf32>, %arg1: tensor<4xui64>, %arg2: tensor<2xi64>, %arg3: tensor<f32>):
    %0 = "stablehlo.tuple"(%arg0, %arg3) : (tensor<4x6xf32>, tensor<f32>) -> tuple<tensor<4x6xf32>, tensor<f32>>
    %1 = "stablehlo.get_tuple_element"(%0) <{index = 1 : i32}> : (tuple<tensor<4x6xf32>, tensor<f32>>) -> tensor<f32>
    %2:2 = "stablehlo.optimization_barrier"(%arg0, %arg3) : (tensor<4x6xf32>, tensor<f32>) -> (tensor<4x6xf32>, tensor<f32>)
    "stablehlo.optimization_barrier"() : () -> ()
    %3 = "stablehlo.composite"(%arg0) <{composite_attributes = {scale = 2.000000e-01 : f32}, decomposition = @unit, name = "my.unit", version = 1 : i32}> : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %4 = "stablehlo.custom_call"(%arg0, %arg3) <{api_version = 4 : i32, backend_config = {count = 3 : i64, words = ["a", "b"]}, call_target_name = "my.call", has_side_effect = true, operand_layouts = [dense<[1, 0]> : tensor<2xindex>, dense<> : tensor<0xindex>], result_layouts = [dense<[0, 1]> : tensor<2xindex>]}> {mhlo.sharding = "{replicated}"} : (tensor<4x6xf32>, tensor<f32>) -> tensor<4x6xf32>
    %5 = "stablehlo.custom_call"() <{call_target_name = "not-an-identifier"}> : () -> tensor<i32>
    %6 = "stablehlo.rng"(%arg3, %arg3, %arg2) <{rng_distribution = #stablehlo<rng_distribution NORMAL>}> : (tensor<f32>, tensor<f32>, tensor<2xi64>) -> tensor<?x?xf32>
    %7:2 = "stablehlo.rng_bit_generator"(%arg1) <{rng_algorithm = #stablehlo<rng_algorithm THREE_FRY>}> : (tensor<4xui64>) -> (tensor<4xui64>, tensor<3xui32>)
    %8 = "stablehlo.all_reduce"(%arg0) <{channel_handle = #stablehlo.channel_handle<handle = 5, type = 0>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> ({
    ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
      %9 = "stablehlo.add"(%arg4, %arg5) : (tensor<f32>, tensor<f32>) -> tensor<f32>
      "stablehlo.return"(%9) : (tensor<f32>) -> ()
    }) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    "func.return"() : () -> ()
  }) : () -> ()
}) : () -> ()
