"builtin.module"() <{sym_name = "all_operations"}> ({
  "func.func"() <{function_type = (tensor<4x6xf32>, tensor<4x6xi32>) -> (), sym_name = "unary"}> ({
  ^bb0(%arg56: tensor<4x6xf32>, %arg57: tensor<4x6xi32>):
    %147 = "stablehlo.abs"(%arg56) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %148 = "stablehlo.cbrt"(%arg56) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %149 = "stablehlo.ceil"(%arg56) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %150 = "stablehlo.cosine"(%arg56) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %151 = "stablehlo.exponential"(%arg56) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %152 = "stablehlo.exponential_minus_one"(%arg56) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %153 = "stablehlo.floor"(%arg56) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %154 = "stablehlo.log"(%arg56) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %155 = "stablehlo.log_plus_one"(%arg56) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %156 = "stablehlo.logistic"(%arg56) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %157 = "stablehlo.negate"(%arg56) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %158 = "stablehlo.round_nearest_afz"(%arg56) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %159 = "stablehlo.round_nearest_even"(%arg56) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %160 = "stablehlo.rsqrt"(%arg56) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %161 = "stablehlo.sign"(%arg56) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %162 = "stablehlo.sine"(%arg56) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %163 = "stablehlo.sqrt"(%arg56) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %164 = "stablehlo.tan"(%arg56) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %165 = "stablehlo.tanh"(%arg56) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %166 = "stablehlo.count_leading_zeros"(%arg57) : (tensor<4x6xi32>) -> tensor<4x6xi32>
    %167 = "stablehlo.not"(%arg57) : (tensor<4x6xi32>) -> tensor<4x6xi32>
    %168 = "stablehlo.popcnt"(%arg57) : (tensor<4x6xi32>) -> tensor<4x6xi32>
    "func.return"() : () -> ()
  }) : () -> ()
  "func.func"() <{function_type = (tensor<4x6xf32>, tensor<4x6xi32>) -> (), sym_name = "binary"}> ({
  ^bb0(%arg54: tensor<4x6xf32>, %arg55: tensor<4x6xi32>):
    %132 = "stablehlo.add"(%arg54, %arg54) : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %133 = "stablehlo.atan2"(%arg54, %arg54) : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %134 = "stablehlo.divide"(%arg54, %arg54) : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %135 = "stablehlo.maximum"(%arg54, %arg54) : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %136 = "stablehlo.minimum"(%arg54, %arg54) : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %137 = "stablehlo.multiply"(%arg54, %arg54) : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %138 = "stablehlo.power"(%arg54, %arg54) : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %139 = "stablehlo.remainder"(%arg54, %arg54) : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %140 = "stablehlo.subtract"(%arg54, %arg54) : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %141 = "stablehlo.and"(%arg55, %arg55) : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi32>
    %142 = "stablehlo.or"(%arg55, %arg55) : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi32>
    %143 = "stablehlo.xor"(%arg55, %arg55) : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi32>
    %144 = "stablehlo.shift_left"(%arg55, %arg55) : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi32>
    %145 = "stablehlo.shift_right_arithmetic"(%arg55, %arg55) : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi32>
    %146 = "stablehlo.shift_right_logical"(%arg55, %arg55) : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi32>
    "func.return"() : () -> ()
  }) : () -> ()
  "func.func"() <{function_type = (tensor<4x6xf32>, tensor<4x6xi32>, tensor<4x6xi1>, tensor<f32>, tensor<i1>) -> (), sym_name = "elementwise"}> ({
  ^bb0(%arg49: tensor<4x6xf32>, %arg50: tensor<4x6xi32>, %arg51: tensor<4x6xi1>, %arg52: tensor<f32>, %arg53: tensor<i1>):
    %118 = "stablehlo.convert"(%arg49) : (tensor<4x6xf32>) -> tensor<4x6xbf16>
    %119 = "stablehlo.is_finite"(%arg49) : (tensor<4x6xf32>) -> tensor<4x6xi1>
    %120 = "stablehlo.complex"(%arg49, %arg49) : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xcomplex<f32>>
    %121 = "stablehlo.real"(%120) : (tensor<4x6xcomplex<f32>>) -> tensor<4x6xf32>
    %122 = "stablehlo.imag"(%120) : (tensor<4x6xcomplex<f32>>) -> tensor<4x6xf32>
    %123 = "stablehlo.reduce_precision"(%arg49) <{exponent_bits = 8 : i32, mantissa_bits = 10 : i32}> : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %124 = "stablehlo.compare"(%arg49, %arg49) <{compare_type = #stablehlo<comparison_type TOTALORDER>, comparison_direction = #stablehlo<comparison_direction LT>}> : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xi1>
    %125 = "stablehlo.compare"(%arg50, %arg50) <{comparison_direction = #stablehlo<comparison_direction NE>}> : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi1>
    %126 = "stablehlo.clamp"(%arg52, %arg49, %arg52) : (tensor<f32>, tensor<4x6xf32>, tensor<f32>) -> tensor<4x6xf32>
    %127 = "stablehlo.clamp"(%arg49, %arg49, %arg49) : (tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %128 = "stablehlo.select"(%arg51, %arg49, %arg49) : (tensor<4x6xi1>, tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %129 = "stablehlo.select"(%arg53, %arg49, %arg49) : (tensor<i1>, tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %130 = "stablehlo.exponential"(%arg49) <{result_accuracy = #stablehlo.result_accuracy<atol = 1.000000e-05, ulps = 2, mode = #stablehlo.result_accuracy_mode<TOLERANCE>>}> {note = "kept"} : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %131 = "stablehlo.add"(%arg49, %arg49) {mhlo.frontend_attributes = {a = "b"}} : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    "func.return"() : () -> ()
  }) : () -> ()
  "func.func"() <{function_type = (tensor<2xi64>) -> (), sym_name = "sources"}> ({
  ^bb0(%arg48: tensor<2xi64>):
    %110 = "stablehlo.constant"() <{value = dense<[[1.000000e+00, 0xFF800000], [2.500000e+00, 0x7FC00000]]> : tensor<2x2xf32>}> : () -> tensor<2x2xf32>
    %111 = "stablehlo.constant"() <{value = dense<true> : tensor<3xi1>}> {note = 1 : i32} : () -> tensor<3xi1>
    %112 = "stablehlo.iota"() <{iota_dimension = 1 : i64}> : () -> tensor<2x3xi32>
    %113 = "stablehlo.dynamic_iota"(%arg48) <{iota_dimension = 0 : i64}> : (tensor<2xi64>) -> tensor<?x?xf32>
    %114 = "stablehlo.create_token"() : () -> !stablehlo.token
    %115 = "stablehlo.partition_id"() : () -> tensor<ui32>
    %116 = "stablehlo.replica_id"() : () -> tensor<ui32>
    %117 = "stablehlo.after_all"(%114, %114) : (!stablehlo.token, !stablehlo.token) -> !stablehlo.token
    "func.return"() : () -> ()
  }) : () -> ()
  "func.func"() <{function_type = (tensor<4x6xf32>, tensor<4x2xf32>, tensor<2xi64>, tensor<i32>, tensor<f32>, tensor<?x?xf32>) -> (), sym_name = "shapes"}> ({
  ^bb0(%arg40: tensor<4x6xf32>, %arg41: tensor<4x2xf32>, %arg42: tensor<2xi64>, %arg43: tensor<i32>, %arg44: tensor<f32>, %arg45: tensor<?x?xf32>):
    %88 = "stablehlo.bitcast_convert"(%arg40) : (tensor<4x6xf32>) -> tensor<4x6xi32>
    %89 = "stablehlo.broadcast"(%arg40) <{broadcast_sizes = array<i64: 2>}> : (tensor<4x6xf32>) -> tensor<2x4x6xf32>
    %90 = "stablehlo.broadcast_in_dim"(%arg40) <{broadcast_dimensions = array<i64: 2, 0>}> : (tensor<4x6xf32>) -> tensor<6x3x4xf32>
    %91 = "stablehlo.broadcast_in_dim"(%arg44) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<2xf32>
    %92 = "stablehlo.dynamic_broadcast_in_dim"(%arg40, %arg42) <{broadcast_dimensions = array<i64: 0, 1>, known_expanding_dimensions = array<i64>, known_nonexpanding_dimensions = array<i64: 0, 1>}> : (tensor<4x6xf32>, tensor<2xi64>) -> tensor<4x6xf32>
    %93 = "stablehlo.concatenate"(%arg40, %arg41, %arg41) <{dimension = 1 : i64}> : (tensor<4x6xf32>, tensor<4x2xf32>, tensor<4x2xf32>) -> tensor<4x10xf32>
    %94 = "stablehlo.dynamic_pad"(%arg40, %arg44, %arg42, %arg42, %arg42) : (tensor<4x6xf32>, tensor<f32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi64>) -> tensor<?x?xf32>
    %95 = "stablehlo.dynamic_reshape"(%arg40, %arg42) : (tensor<4x6xf32>, tensor<2xi64>) -> tensor<?x?xf32>
    %96 = "stablehlo.dynamic_slice"(%arg40, %arg43, %arg43) <{slice_sizes = array<i64: 2, 3>}> : (tensor<4x6xf32>, tensor<i32>, tensor<i32>) -> tensor<2x3xf32>
    %97 = "stablehlo.dynamic_update_slice"(%arg40, %arg41, %arg43, %arg43) : (tensor<4x6xf32>, tensor<4x2xf32>, tensor<i32>, tensor<i32>) -> tensor<4x6xf32>
    %98 = "stablehlo.get_dimension_size"(%arg45) <{dimension = 1 : i64}> : (tensor<?x?xf32>) -> tensor<i32>
    %99 = "stablehlo.pad"(%arg40, %arg44) <{edge_padding_high = array<i64: 0, 2>, edge_padding_low = array<i64: 1, -1>, interior_padding = array<i64: 1, 0>}> : (tensor<4x6xf32>, tensor<f32>) -> tensor<8x7xf32>
    %100 = "stablehlo.real_dynamic_slice"(%arg40, %arg42, %arg42, %arg42) : (tensor<4x6xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi64>) -> tensor<?x?xf32>
    %101 = "stablehlo.reshape"(%arg40) : (tensor<4x6xf32>) -> tensor<24xf32>
    %102 = "stablehlo.reverse"(%arg40) <{dimensions = array<i64: 1>}> : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %103 = "stablehlo.set_dimension_size"(%arg40, %arg43) <{dimension = 0 : i64}> : (tensor<4x6xf32>, tensor<i32>) -> tensor<?x6xf32, #stablehlo.bounds<4, ?>>
    %104 = "stablehlo.slice"(%arg40) <{limit_indices = array<i64: 4, 6>, start_indices = array<i64: 0, 1>, strides = array<i64: 1, 2>}> : (tensor<4x6xf32>) -> tensor<4x3xf32>
    %105 = "stablehlo.transpose"(%arg40) <{permutation = array<i64: 1, 0>}> : (tensor<4x6xf32>) -> tensor<6x4xf32>
    %106 = "stablehlo.gather"(%arg40, %arg42) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = true, slice_sizes = array<i64: 1, 6>}> : (tensor<4x6xf32>, tensor<2xi64>) -> tensor<2x6xf32>
    %107 = "stablehlo.slice"(%arg40) <{limit_indices = array<i64: 2, 6>, start_indices = array<i64: 0, 0>, strides = array<i64: 1, 1>}> : (tensor<4x6xf32>) -> tensor<2x6xf32>
    %108 = "stablehlo.scatter"(%arg40, %arg42, %107) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = true}> ({
    ^bb0(%arg46: tensor<f32>, %arg47: tensor<f32>):
      %109 = "stablehlo.add"(%arg46, %arg47) : (tensor<f32>, tensor<f32>) -> tensor<f32>
      "stablehlo.return"(%109) : (tensor<f32>) -> ()
    }) : (tensor<4x6xf32>, tensor<2xi64>, tensor<2x6xf32>) -> tensor<4x6xf32>
    "func.return"() : () -> ()
  }) : () -> ()
  "func.func"() <{function_type = (tensor<2x3x4xf32>, tensor<2x4x5xf32>, tensor<3x4xf32>, tensor<4x5xf32>, tensor<1x8x8x3xf32>, tensor<3x3x3x4xf32>, tensor<3x3xf32>, tensor<2x3x4xbf16>, tensor<2x4x5xbf16>) -> (), sym_name = "products"}> ({
  ^bb0(%arg31: tensor<2x3x4xf32>, %arg32: tensor<2x4x5xf32>, %arg33: tensor<3x4xf32>, %arg34: tensor<4x5xf32>, %arg35: tensor<1x8x8x3xf32>, %arg36: tensor<3x3x3x4xf32>, %arg37: tensor<3x3xf32>, %arg38: tensor<2x3x4xbf16>, %arg39: tensor<2x4x5xbf16>):
    %75 = "stablehlo.dot"(%arg33, %arg34) <{precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision HIGHEST>]}> : (tensor<3x4xf32>, tensor<4x5xf32>) -> tensor<3x5xf32>
    %76 = "stablehlo.dot"(%arg33, %arg34) : (tensor<3x4xf32>, tensor<4x5xf32>) -> tensor<3x5xf32>
    %77 = "stablehlo.dot_general"(%arg31, %arg32) <{dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = [0], rhs_batching_dimensions = [0], lhs_contracting_dimensions = [2], rhs_contracting_dimensions = [1]>, precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision HIGHEST>]}> : (tensor<2x3x4xf32>, tensor<2x4x5xf32>) -> tensor<2x3x5xf32>
    %78 = "stablehlo.dot_general"(%arg33, %arg34) <{dot_dimension_numbers = #stablehlo.dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [0]>}> : (tensor<3x4xf32>, tensor<4x5xf32>) -> tensor<3x5xf32>
    %79 = "stablehlo.dot_general"(%arg38, %arg39) <{algorithm = #stablehlo.dot_algorithm<lhs_precision_type = bf16, rhs_precision_type = bf16, accumulation_type = f32, lhs_component_count = 1, rhs_component_count = 1, num_primitive_operations = 1, allow_imprecise_accumulation = false>, dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = [0], rhs_batching_dimensions = [0], lhs_contracting_dimensions = [2], rhs_contracting_dimensions = [1]>, precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]}> : (tensor<2x3x4xbf16>, tensor<2x4x5xbf16>) -> tensor<2x3x5xf32>
    %80 = "stablehlo.einsum"(%arg33, %arg34) <{einsum_config = "ab,bc->ac"}> : (tensor<3x4xf32>, tensor<4x5xf32>) -> tensor<3x5xf32>
    %81 = "stablehlo.unary_einsum"(%arg33) <{einsum_config = "ab->a"}> : (tensor<3x4xf32>) -> tensor<3xf32>
    %82 = "stablehlo.convolution"(%arg35, %arg36) <{batch_group_count = 1 : i64, dimension_numbers = #stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>, feature_group_count = 1 : i64, lhs_dilation = array<i64: 1, 1>, padding = dense<1> : tensor<2x2xi64>, rhs_dilation = array<i64: 1, 1>, window_reversal = array<i1: false, true>, window_strides = array<i64: 1, 1>}> : (tensor<1x8x8x3xf32>, tensor<3x3x3x4xf32>) -> tensor<1x8x8x4xf32>
    %83 = "stablehlo.convolution"(%arg35, %arg36) <{batch_group_count = 1 : i64, dimension_numbers = #stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>, feature_group_count = 1 : i64}> : (tensor<1x8x8x3xf32>, tensor<3x3x3x4xf32>) -> tensor<1x6x6x4xf32>
    %84 = "stablehlo.cholesky"(%arg37) <{lower = true}> : (tensor<3x3xf32>) -> tensor<3x3xf32>
    %85 = "stablehlo.cholesky"(%arg37) : (tensor<3x3xf32>) -> tensor<3x3xf32>
    %86 = "stablehlo.triangular_solve"(%arg37, %arg37) <{left_side = true, lower = true, transpose_a = #stablehlo<transpose NO_TRANSPOSE>, unit_diagonal = false}> : (tensor<3x3xf32>, tensor<3x3xf32>) -> tensor<3x3xf32>
    %87 = "stablehlo.fft"(%arg37) <{fft_length = array<i64: 3>, fft_type = #stablehlo<fft_type RFFT>}> : (tensor<3x3xf32>) -> tensor<3x2xcomplex<f32>>
    "func.return"() : () -> ()
  }) : () -> ()
  "func.func"() <{function_type = (tensor<4x6xf32>, tensor<4x6xi32>, tensor<f32>, tensor<i32>, tensor<i1>) -> tensor<4xf32>, sym_name = "regions"}> ({
  ^bb0(%arg11: tensor<4x6xf32>, %arg12: tensor<4x6xi32>, %arg13: tensor<f32>, %arg14: tensor<i32>, %arg15: tensor<i1>):
    %57 = "stablehlo.reduce"(%arg11, %arg13) <{dimensions = array<i64: 1>}> ({
    ^bb0(%arg29: tensor<f32>, %arg30: tensor<f32>):
      %74 = "stablehlo.maximum"(%arg29, %arg30) : (tensor<f32>, tensor<f32>) -> tensor<f32>
      "stablehlo.return"(%74) : (tensor<f32>) -> ()
    }) : (tensor<4x6xf32>, tensor<f32>) -> tensor<4xf32>
    %58:2 = "stablehlo.reduce"(%arg11, %arg12, %arg13, %arg14) <{dimensions = array<i64: 1>}> ({
    ^bb0(%arg25: tensor<f32>, %arg26: tensor<i32>, %arg27: tensor<f32>, %arg28: tensor<i32>):
      %71 = "stablehlo.compare"(%arg25, %arg27) <{comparison_direction = #stablehlo<comparison_direction GT>}> : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %72 = "stablehlo.select"(%71, %arg25, %arg27) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
      %73 = "stablehlo.select"(%71, %arg26, %arg28) : (tensor<i1>, tensor<i32>, tensor<i32>) -> tensor<i32>
      "stablehlo.return"(%72, %73) : (tensor<f32>, tensor<i32>) -> ()
    }) {note} : (tensor<4x6xf32>, tensor<4x6xi32>, tensor<f32>, tensor<i32>) -> (tensor<4xf32>, tensor<4xi32>)
    %59 = "stablehlo.reduce_window"(%arg11, %arg13) <{padding = dense<[[0, 0], [1, 1]]> : tensor<2x2xi64>, window_dimensions = array<i64: 1, 2>, window_strides = array<i64: 1, 2>}> ({
    ^bb0(%arg23: tensor<f32>, %arg24: tensor<f32>):
      %70 = "stablehlo.add"(%arg23, %arg24) : (tensor<f32>, tensor<f32>) -> tensor<f32>
      "stablehlo.return"(%70) : (tensor<f32>) -> ()
    }) : (tensor<4x6xf32>, tensor<f32>) -> tensor<4x4xf32>
    %60 = "stablehlo.sort"(%arg11) <{dimension = 1 : i64, is_stable = true}> ({
    ^bb0(%arg21: tensor<f32>, %arg22: tensor<f32>):
      %69 = "stablehlo.compare"(%arg21, %arg22) <{comparison_direction = #stablehlo<comparison_direction LT>}> : (tensor<f32>, tensor<f32>) -> tensor<i1>
      "stablehlo.return"(%69) : (tensor<i1>) -> ()
    }) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %61 = "stablehlo.map"(%arg11) <{dimensions = array<i64: 0, 1>}> ({
    ^bb0(%arg20: tensor<f32>):
      %68 = "stablehlo.tanh"(%arg20) : (tensor<f32>) -> tensor<f32>
      "stablehlo.return"(%68) : (tensor<f32>) -> ()
    }) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %62 = "stablehlo.if"(%arg15) ({
      "stablehlo.return"(%arg11) : (tensor<4x6xf32>) -> ()
    }, {
      "stablehlo.return"(%61) : (tensor<4x6xf32>) -> ()
    }) : (tensor<i1>) -> tensor<4x6xf32>
    %63 = "stablehlo.case"(%arg14) ({
      "stablehlo.return"(%arg11) : (tensor<4x6xf32>) -> ()
    }, {
      %67 = "func.call"(%arg11) <{callee = @unit}> : (tensor<4x6xf32>) -> tensor<4x6xf32>
      "stablehlo.return"(%67) : (tensor<4x6xf32>) -> ()
    }) : (tensor<i32>) -> tensor<4x6xf32>
    %64:2 = "stablehlo.while"(%arg14, %arg11) ({
    ^bb0(%arg18: tensor<i32>, %arg19: tensor<4x6xf32>):
      %66 = "stablehlo.compare"(%arg18, %arg14) <{compare_type = #stablehlo<comparison_type SIGNED>, comparison_direction = #stablehlo<comparison_direction LT>}> : (tensor<i32>, tensor<i32>) -> tensor<i1>
      "stablehlo.return"(%66) : (tensor<i1>) -> ()
    }, {
    ^bb0(%arg16: tensor<i32>, %arg17: tensor<4x6xf32>):
      %65 = "stablehlo.add"(%arg16, %arg16) : (tensor<i32>, tensor<i32>) -> tensor<i32>
      "stablehlo.return"(%65, %arg17) : (tensor<i32>, tensor<4x6xf32>) -> ()
    }) {mhlo.note = "loop"} : (tensor<i32>, tensor<4x6xf32>) -> (tensor<i32>, tensor<4x6xf32>)
    "stablehlo.while"() ({
      "stablehlo.return"(%arg15) : (tensor<i1>) -> ()
    }, {
      "stablehlo.return"() : () -> ()
    }) : () -> ()
    "func.return"(%57) : (tensor<4xf32>) -> ()
  }) : () -> ()
  "func.func"() <{function_type = (tensor<4x6xf32>) -> tensor<4x6xf32>, sym_name = "unit", sym_visibility = "private"}> ({
  ^bb0(%arg10: tensor<4x6xf32>):
    "func.return"(%arg10) : (tensor<4x6xf32>) -> ()
  }) : () -> ()
  "func.func"() <{function_type = (tensor<4x6xf32>, tensor<4xui64>, tensor<2xi64>, tensor<f32>) -> (), sym_name = "calls"}> ({
  ^bb0(%arg4: tensor<4x6xf32>, %arg5: tensor<4xui64>, %arg6: tensor<2xi64>, %arg7: tensor<f32>):
    %47 = "stablehlo.tuple"(%arg4, %arg7) : (tensor<4x6xf32>, tensor<f32>) -> tuple<tensor<4x6xf32>, tensor<f32>>
    %48 = "stablehlo.get_tuple_element"(%47) <{index = 1 : i32}> : (tuple<tensor<4x6xf32>, tensor<f32>>) -> tensor<f32>
    %49:2 = "stablehlo.optimization_barrier"(%arg4, %arg7) : (tensor<4x6xf32>, tensor<f32>) -> (tensor<4x6xf32>, tensor<f32>)
    "stablehlo.optimization_barrier"() : () -> ()
    %50 = "stablehlo.composite"(%arg4) <{composite_attributes = {scale = 2.000000e-01 : f32}, decomposition = @unit, name = "my.unit", version = 1 : i32}> : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %51 = "stablehlo.custom_call"(%arg4, %arg7) <{api_version = 4 : i32, backend_config = {count = 3 : i64, words = ["a", "b"]}, call_target_name = "my.call", has_side_effect = true, operand_layouts = [dense<[1, 0]> : tensor<2xindex>, dense<> : tensor<0xindex>], result_layouts = [dense<[0, 1]> : tensor<2xindex>]}> {mhlo.sharding = "{replicated}"} : (tensor<4x6xf32>, tensor<f32>) -> tensor<4x6xf32>
    %52 = "stablehlo.custom_call"() <{call_target_name = "not-an-identifier"}> : () -> tensor<i32>
    %53 = "stablehlo.rng"(%arg7, %arg7, %arg6) <{rng_distribution = #stablehlo<rng_distribution NORMAL>}> : (tensor<f32>, tensor<f32>, tensor<2xi64>) -> tensor<?x?xf32>
    %54:2 = "stablehlo.rng_bit_generator"(%arg5) <{rng_algorithm = #stablehlo<rng_algorithm THREE_FRY>}> : (tensor<4xui64>) -> (tensor<4xui64>, tensor<3xui32>)
    %55 = "stablehlo.all_reduce"(%arg4) <{channel_handle = #stablehlo.channel_handle<handle = 5, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> ({
    ^bb0(%arg8: tensor<f32>, %arg9: tensor<f32>):
      %56 = "stablehlo.add"(%arg8, %arg9) : (tensor<f32>, tensor<f32>) -> tensor<f32>
      "stablehlo.return"(%56) : (tensor<f32>) -> ()
    }) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    "func.return"() : () -> ()
  }) : () -> ()
  "func.func"() <{function_type = (tensor<4x6xf32>, tensor<6xf32>, tensor<4x6xi32>, tensor<4x6xi1>) -> (), sym_name = "chlo"}> ({
  ^bb0(%arg0: tensor<4x6xf32>, %arg1: tensor<6xf32>, %arg2: tensor<4x6xi32>, %arg3: tensor<4x6xi1>):
    %0 = "chlo.acos"(%arg0) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %1 = "chlo.acosh"(%arg0) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %2 = "chlo.asin"(%arg0) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %3 = "chlo.asinh"(%arg0) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %4 = "chlo.atan"(%arg0) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %5 = "chlo.atanh"(%arg0) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %6 = "chlo.bessel_i1e"(%arg0) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %7 = "chlo.conj"(%arg0) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %8 = "chlo.cosh"(%arg0) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %9 = "chlo.digamma"(%arg0) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %10 = "chlo.erf"(%arg0) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %11 = "chlo.erf_inv"(%arg0) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %12 = "chlo.erfc"(%arg0) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %13 = "chlo.lgamma"(%arg0) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %14 = "chlo.sinh"(%arg0) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %15 = "chlo.square"(%arg0) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %16 = "chlo.tan"(%arg0) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %17 = "chlo.is_inf"(%arg0) : (tensor<4x6xf32>) -> tensor<4x6xi1>
    %18 = "chlo.is_neg_inf"(%arg0) : (tensor<4x6xf32>) -> tensor<4x6xi1>
    %19 = "chlo.is_pos_inf"(%arg0) : (tensor<4x6xf32>) -> tensor<4x6xi1>
    %20 = "chlo.next_after"(%arg0, %arg0) : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %21 = "chlo.polygamma"(%arg0, %arg0) : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %22 = "chlo.zeta"(%arg0, %arg0) : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %23 = "chlo.broadcast_add"(%arg0, %arg1) <{broadcast_dimensions = array<i64: 1>}> : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>
    %24 = "chlo.broadcast_atan2"(%arg0, %arg1) <{broadcast_dimensions = array<i64: 1>}> : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>
    %25 = "chlo.broadcast_divide"(%arg0, %arg1) <{broadcast_dimensions = array<i64: 1>}> : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>
    %26 = "chlo.broadcast_maximum"(%arg0, %arg1) <{broadcast_dimensions = array<i64: 1>}> : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>
    %27 = "chlo.broadcast_minimum"(%arg0, %arg1) <{broadcast_dimensions = array<i64: 1>}> : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>
    %28 = "chlo.broadcast_multiply"(%arg0, %arg1) <{broadcast_dimensions = array<i64: 1>}> : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>
    %29 = "chlo.broadcast_next_after"(%arg0, %arg1) <{broadcast_dimensions = array<i64: 1>}> : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>
    %30 = "chlo.broadcast_polygamma"(%arg0, %arg1) <{broadcast_dimensions = array<i64: 1>}> : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>
    %31 = "chlo.broadcast_power"(%arg0, %arg1) <{broadcast_dimensions = array<i64: 1>}> : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>
    %32 = "chlo.broadcast_remainder"(%arg0, %arg1) <{broadcast_dimensions = array<i64: 1>}> : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>
    %33 = "chlo.broadcast_subtract"(%arg0, %arg1) <{broadcast_dimensions = array<i64: 1>}> : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>
    %34 = "chlo.broadcast_zeta"(%arg0, %arg1) <{broadcast_dimensions = array<i64: 1>}> : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>
    %35 = "chlo.broadcast_and"(%arg2, %arg2) : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi32>
    %36 = "chlo.broadcast_or"(%arg2, %arg2) : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi32>
    %37 = "chlo.broadcast_xor"(%arg2, %arg2) : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi32>
    %38 = "chlo.broadcast_shift_left"(%arg2, %arg2) : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi32>
    %39 = "chlo.broadcast_shift_right_arithmetic"(%arg2, %arg2) : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi32>
    %40 = "chlo.broadcast_shift_right_logical"(%arg2, %arg2) : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi32>
    %41 = "chlo.broadcast_compare"(%arg0, %arg1) <{comparison_direction = #chlo<comparison_direction GE>}> : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xi1>
    %42 = "chlo.broadcast_select"(%arg3, %arg0, %arg0) : (tensor<4x6xi1>, tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %43:2 = "chlo.top_k"(%arg0) <{k = 2 : i64}> : (tensor<4x6xf32>) -> (tensor<4x2xf32>, tensor<4x2xi32>)
    %44 = "chlo.mulhi"(%arg2, %arg2) : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi32>
    %45 = "chlo.broadcast_complex"(%arg0, %arg1) : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xcomplex<f32>>
    %46 = "chlo.constant"() <{value = dense<1> : tensor<2xi32>}> : () -> tensor<2xi32>
    "func.return"() : () -> ()
  }) : () -> ()
}) : () -> ()

