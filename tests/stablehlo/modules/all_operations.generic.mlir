"builtin.module"() <{sym_name = "all_operations"}> ({
  "func.func"() <{function_type = (tensor<4x6xf32>, tensor<4x6xi32>) -> (), sym_name = "unary"}> ({
  ^bb0(%arg58: tensor<4x6xf32>, %arg59: tensor<4x6xi32>):
    %151 = "stablehlo.abs"(%arg58) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %152 = "stablehlo.cbrt"(%arg58) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %153 = "stablehlo.ceil"(%arg58) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %154 = "stablehlo.cosine"(%arg58) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %155 = "stablehlo.exponential"(%arg58) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %156 = "stablehlo.exponential_minus_one"(%arg58) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %157 = "stablehlo.floor"(%arg58) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %158 = "stablehlo.log"(%arg58) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %159 = "stablehlo.log_plus_one"(%arg58) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %160 = "stablehlo.logistic"(%arg58) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %161 = "stablehlo.negate"(%arg58) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %162 = "stablehlo.round_nearest_afz"(%arg58) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %163 = "stablehlo.round_nearest_even"(%arg58) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %164 = "stablehlo.rsqrt"(%arg58) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %165 = "stablehlo.sign"(%arg58) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %166 = "stablehlo.sine"(%arg58) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %167 = "stablehlo.sqrt"(%arg58) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %168 = "stablehlo.tan"(%arg58) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %169 = "stablehlo.tanh"(%arg58) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %170 = "stablehlo.count_leading_zeros"(%arg59) : (tensor<4x6xi32>) -> tensor<4x6xi32>
    %171 = "stablehlo.not"(%arg59) : (tensor<4x6xi32>) -> tensor<4x6xi32>
    %172 = "stablehlo.popcnt"(%arg59) : (tensor<4x6xi32>) -> tensor<4x6xi32>
    "func.return"() : () -> ()
  }) : () -> ()
  "func.func"() <{function_type = (tensor<4x6xf32>, tensor<4x6xi32>) -> (), sym_name = "binary"}> ({
  ^bb0(%arg56: tensor<4x6xf32>, %arg57: tensor<4x6xi32>):
    %136 = "stablehlo.add"(%arg56, %arg56) : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %137 = "stablehlo.atan2"(%arg56, %arg56) : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %138 = "stablehlo.divide"(%arg56, %arg56) : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %139 = "stablehlo.maximum"(%arg56, %arg56) : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %140 = "stablehlo.minimum"(%arg56, %arg56) : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %141 = "stablehlo.multiply"(%arg56, %arg56) : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %142 = "stablehlo.power"(%arg56, %arg56) : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %143 = "stablehlo.remainder"(%arg56, %arg56) : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %144 = "stablehlo.subtract"(%arg56, %arg56) : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %145 = "stablehlo.and"(%arg57, %arg57) : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi32>
    %146 = "stablehlo.or"(%arg57, %arg57) : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi32>
    %147 = "stablehlo.xor"(%arg57, %arg57) : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi32>
    %148 = "stablehlo.shift_left"(%arg57, %arg57) : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi32>
    %149 = "stablehlo.shift_right_arithmetic"(%arg57, %arg57) : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi32>
    %150 = "stablehlo.shift_right_logical"(%arg57, %arg57) : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi32>
    "func.return"() : () -> ()
  }) : () -> ()
  "func.func"() <{function_type = (tensor<4x6xf32>, tensor<4x6xi32>, tensor<4x6xi1>, tensor<f32>, tensor<i1>) -> (), sym_name = "elementwise"}> ({
  ^bb0(%arg51: tensor<4x6xf32>, %arg52: tensor<4x6xi32>, %arg53: tensor<4x6xi1>, %arg54: tensor<f32>, %arg55: tensor<i1>):
    %122 = "stablehlo.convert"(%arg51) : (tensor<4x6xf32>) -> tensor<4x6xbf16>
    %123 = "stablehlo.is_finite"(%arg51) : (tensor<4x6xf32>) -> tensor<4x6xi1>
    %124 = "stablehlo.complex"(%arg51, %arg51) : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xcomplex<f32>>
    %125 = "stablehlo.real"(%124) : (tensor<4x6xcomplex<f32>>) -> tensor<4x6xf32>
    %126 = "stablehlo.imag"(%124) : (tensor<4x6xcomplex<f32>>) -> tensor<4x6xf32>
    %127 = "stablehlo.reduce_precision"(%arg51) <{exponent_bits = 8 : i32, mantissa_bits = 10 : i32}> : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %128 = "stablehlo.compare"(%arg51, %arg51) <{compare_type = #stablehlo<comparison_type TOTALORDER>, comparison_direction = #stablehlo<comparison_direction LT>}> : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xi1>
    %129 = "stablehlo.compare"(%arg52, %arg52) <{comparison_direction = #stablehlo<comparison_direction NE>}> : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi1>
    %130 = "stablehlo.clamp"(%arg54, %arg51, %arg54) : (tensor<f32>, tensor<4x6xf32>, tensor<f32>) -> tensor<4x6xf32>
    %131 = "stablehlo.clamp"(%arg51, %arg51, %arg51) : (tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %132 = "stablehlo.select"(%arg53, %arg51, %arg51) : (tensor<4x6xi1>, tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %133 = "stablehlo.select"(%arg55, %arg51, %arg51) : (tensor<i1>, tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %134 = "stablehlo.exponential"(%arg51) <{result_accuracy = #stablehlo.result_accuracy<atol = 1.000000e-05, ulps = 2, mode = #stablehlo.result_accuracy_mode<TOLERANCE>>}> {note = "kept"} : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %135 = "stablehlo.add"(%arg51, %arg51) {mhlo.frontend_attributes = {a = "b"}} : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    "func.return"() : () -> ()
  }) : () -> ()
  "func.func"() <{function_type = (tensor<2xi64>) -> (), sym_name = "sources"}> ({
  ^bb0(%arg50: tensor<2xi64>):
    %114 = "stablehlo.constant"() <{value = dense<[[1.000000e+00, 0xFF800000], [2.500000e+00, 0x7FC00000]]> : tensor<2x2xf32>}> : () -> tensor<2x2xf32>
    %115 = "stablehlo.constant"() <{value = dense<true> : tensor<3xi1>}> {note = 1 : i32} : () -> tensor<3xi1>
    %116 = "stablehlo.iota"() <{iota_dimension = 1 : i64}> : () -> tensor<2x3xi32>
    %117 = "stablehlo.dynamic_iota"(%arg50) <{iota_dimension = 0 : i64}> : (tensor<2xi64>) -> tensor<?x?xf32>
    %118 = "stablehlo.create_token"() : () -> !stablehlo.token
    %119 = "stablehlo.partition_id"() : () -> tensor<ui32>
    %120 = "stablehlo.replica_id"() : () -> tensor<ui32>
    %121 = "stablehlo.after_all"(%118, %118) : (!stablehlo.token, !stablehlo.token) -> !stablehlo.token
    "func.return"() : () -> ()
  }) : () -> ()
  "func.func"() <{function_type = (tensor<4x6xf32>, tensor<4x2xf32>, tensor<2xi64>, tensor<i32>, tensor<f32>, tensor<?x?xf32>) -> (), sym_name = "shapes"}> ({
  ^bb0(%arg42: tensor<4x6xf32>, %arg43: tensor<4x2xf32>, %arg44: tensor<2xi64>, %arg45: tensor<i32>, %arg46: tensor<f32>, %arg47: tensor<?x?xf32>):
    %92 = "stablehlo.bitcast_convert"(%arg42) : (tensor<4x6xf32>) -> tensor<4x6xi32>
    %93 = "stablehlo.broadcast"(%arg42) <{broadcast_sizes = array<i64: 2>}> : (tensor<4x6xf32>) -> tensor<2x4x6xf32>
    %94 = "stablehlo.broadcast_in_dim"(%arg42) <{broadcast_dimensions = array<i64: 2, 0>}> : (tensor<4x6xf32>) -> tensor<6x3x4xf32>
    %95 = "stablehlo.broadcast_in_dim"(%arg46) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<2xf32>
    %96 = "stablehlo.dynamic_broadcast_in_dim"(%arg42, %arg44) <{broadcast_dimensions = array<i64: 0, 1>, known_expanding_dimensions = array<i64>, known_nonexpanding_dimensions = array<i64: 0, 1>}> : (tensor<4x6xf32>, tensor<2xi64>) -> tensor<4x6xf32>
    %97 = "stablehlo.concatenate"(%arg42, %arg43, %arg43) <{dimension = 1 : i64}> : (tensor<4x6xf32>, tensor<4x2xf32>, tensor<4x2xf32>) -> tensor<4x10xf32>
    %98 = "stablehlo.dynamic_pad"(%arg42, %arg46, %arg44, %arg44, %arg44) : (tensor<4x6xf32>, tensor<f32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi64>) -> tensor<?x?xf32>
    %99 = "stablehlo.dynamic_reshape"(%arg42, %arg44) : (tensor<4x6xf32>, tensor<2xi64>) -> tensor<?x?xf32>
    %100 = "stablehlo.dynamic_slice"(%arg42, %arg45, %arg45) <{slice_sizes = array<i64: 2, 3>}> : (tensor<4x6xf32>, tensor<i32>, tensor<i32>) -> tensor<2x3xf32>
    %101 = "stablehlo.dynamic_update_slice"(%arg42, %arg43, %arg45, %arg45) : (tensor<4x6xf32>, tensor<4x2xf32>, tensor<i32>, tensor<i32>) -> tensor<4x6xf32>
    %102 = "stablehlo.get_dimension_size"(%arg47) <{dimension = 1 : i64}> : (tensor<?x?xf32>) -> tensor<i32>
    %103 = "stablehlo.pad"(%arg42, %arg46) <{edge_padding_high = array<i64: 0, 2>, edge_padding_low = array<i64: 1, -1>, interior_padding = array<i64: 1, 0>}> : (tensor<4x6xf32>, tensor<f32>) -> tensor<8x7xf32>
    %104 = "stablehlo.real_dynamic_slice"(%arg42, %arg44, %arg44, %arg44) : (tensor<4x6xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi64>) -> tensor<?x?xf32>
    %105 = "stablehlo.reshape"(%arg42) : (tensor<4x6xf32>) -> tensor<24xf32>
    %106 = "stablehlo.reverse"(%arg42) <{dimensions = array<i64: 1>}> : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %107 = "stablehlo.set_dimension_size"(%arg42, %arg45) <{dimension = 0 : i64}> : (tensor<4x6xf32>, tensor<i32>) -> tensor<?x6xf32, #stablehlo.bounds<4, ?>>
    %108 = "stablehlo.slice"(%arg42) <{limit_indices = array<i64: 4, 6>, start_indices = array<i64: 0, 1>, strides = array<i64: 1, 2>}> : (tensor<4x6xf32>) -> tensor<4x3xf32>
    %109 = "stablehlo.transpose"(%arg42) <{permutation = array<i64: 1, 0>}> : (tensor<4x6xf32>) -> tensor<6x4xf32>
    %110 = "stablehlo.gather"(%arg42, %arg44) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = true, slice_sizes = array<i64: 1, 6>}> : (tensor<4x6xf32>, tensor<2xi64>) -> tensor<2x6xf32>
    %111 = "stablehlo.slice"(%arg42) <{limit_indices = array<i64: 2, 6>, start_indices = array<i64: 0, 0>, strides = array<i64: 1, 1>}> : (tensor<4x6xf32>) -> tensor<2x6xf32>
    %112 = "stablehlo.scatter"(%arg42, %arg44, %111) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = true}> ({
    ^bb0(%arg48: tensor<f32>, %arg49: tensor<f32>):
      %113 = "stablehlo.add"(%arg48, %arg49) : (tensor<f32>, tensor<f32>) -> tensor<f32>
      "stablehlo.return"(%113) : (tensor<f32>) -> ()
    }) : (tensor<4x6xf32>, tensor<2xi64>, tensor<2x6xf32>) -> tensor<4x6xf32>
    "func.return"() : () -> ()
  }) : () -> ()
  "func.func"() <{function_type = (tensor<2x3x4xf32>, tensor<2x4x5xf32>, tensor<3x4xf32>, tensor<4x5xf32>, tensor<1x8x8x3xf32>, tensor<3x3x3x4xf32>, tensor<3x3xf32>, tensor<2x3x4xbf16>, tensor<2x4x5xbf16>) -> (), sym_name = "products"}> ({
  ^bb0(%arg33: tensor<2x3x4xf32>, %arg34: tensor<2x4x5xf32>, %arg35: tensor<3x4xf32>, %arg36: tensor<4x5xf32>, %arg37: tensor<1x8x8x3xf32>, %arg38: tensor<3x3x3x4xf32>, %arg39: tensor<3x3xf32>, %arg40: tensor<2x3x4xbf16>, %arg41: tensor<2x4x5xbf16>):
    %79 = "stablehlo.dot"(%arg35, %arg36) <{precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision HIGHEST>]}> : (tensor<3x4xf32>, tensor<4x5xf32>) -> tensor<3x5xf32>
    %80 = "stablehlo.dot"(%arg35, %arg36) : (tensor<3x4xf32>, tensor<4x5xf32>) -> tensor<3x5xf32>
    %81 = "stablehlo.dot_general"(%arg33, %arg34) <{dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = [0], rhs_batching_dimensions = [0], lhs_contracting_dimensions = [2], rhs_contracting_dimensions = [1]>, precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision HIGHEST>]}> : (tensor<2x3x4xf32>, tensor<2x4x5xf32>) -> tensor<2x3x5xf32>
    %82 = "stablehlo.dot_general"(%arg35, %arg36) <{dot_dimension_numbers = #stablehlo.dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [0]>}> : (tensor<3x4xf32>, tensor<4x5xf32>) -> tensor<3x5xf32>
    %83 = "stablehlo.dot_general"(%arg40, %arg41) <{algorithm = #stablehlo.dot_algorithm<lhs_precision_type = bf16, rhs_precision_type = bf16, accumulation_type = f32, lhs_component_count = 1, rhs_component_count = 1, num_primitive_operations = 1, allow_imprecise_accumulation = false>, dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = [0], rhs_batching_dimensions = [0], lhs_contracting_dimensions = [2], rhs_contracting_dimensions = [1]>, precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]}> : (tensor<2x3x4xbf16>, tensor<2x4x5xbf16>) -> tensor<2x3x5xf32>
    %84 = "stablehlo.einsum"(%arg35, %arg36) <{einsum_config = "ab,bc->ac"}> : (tensor<3x4xf32>, tensor<4x5xf32>) -> tensor<3x5xf32>
    %85 = "stablehlo.unary_einsum"(%arg35) <{einsum_config = "ab->a"}> : (tensor<3x4xf32>) -> tensor<3xf32>
    %86 = "stablehlo.convolution"(%arg37, %arg38) <{batch_group_count = 1 : i64, dimension_numbers = #stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>, feature_group_count = 1 : i64, lhs_dilation = array<i64: 1, 1>, padding = dense<1> : tensor<2x2xi64>, rhs_dilation = array<i64: 1, 1>, window_reversal = array<i1: false, true>, window_strides = array<i64: 1, 1>}> : (tensor<1x8x8x3xf32>, tensor<3x3x3x4xf32>) -> tensor<1x8x8x4xf32>
    %87 = "stablehlo.convolution"(%arg37, %arg38) <{batch_group_count = 1 : i64, dimension_numbers = #stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>, feature_group_count = 1 : i64}> : (tensor<1x8x8x3xf32>, tensor<3x3x3x4xf32>) -> tensor<1x6x6x4xf32>
    %88 = "stablehlo.cholesky"(%arg39) <{lower = true}> : (tensor<3x3xf32>) -> tensor<3x3xf32>
    %89 = "stablehlo.cholesky"(%arg39) : (tensor<3x3xf32>) -> tensor<3x3xf32>
    %90 = "stablehlo.triangular_solve"(%arg39, %arg39) <{left_side = true, lower = true, transpose_a = #stablehlo<transpose NO_TRANSPOSE>, unit_diagonal = false}> : (tensor<3x3xf32>, tensor<3x3xf32>) -> tensor<3x3xf32>
    %91 = "stablehlo.fft"(%arg39) <{fft_length = array<i64: 3>, fft_type = #stablehlo<fft_type RFFT>}> : (tensor<3x3xf32>) -> tensor<3x2xcomplex<f32>>
    "func.return"() : () -> ()
  }) : () -> ()
  "func.func"() <{function_type = (tensor<4x6xf32>, tensor<4x6xi32>, tensor<f32>, tensor<i32>, tensor<i1>) -> tensor<4xf32>, sym_name = "regions"}> ({
  ^bb0(%arg13: tensor<4x6xf32>, %arg14: tensor<4x6xi32>, %arg15: tensor<f32>, %arg16: tensor<i32>, %arg17: tensor<i1>):
    %61 = "stablehlo.reduce"(%arg13, %arg15) <{dimensions = array<i64: 1>}> ({
    ^bb0(%arg31: tensor<f32>, %arg32: tensor<f32>):
      %78 = "stablehlo.maximum"(%arg31, %arg32) : (tensor<f32>, tensor<f32>) -> tensor<f32>
      "stablehlo.return"(%78) : (tensor<f32>) -> ()
    }) : (tensor<4x6xf32>, tensor<f32>) -> tensor<4xf32>
    %62:2 = "stablehlo.reduce"(%arg13, %arg14, %arg15, %arg16) <{dimensions = array<i64: 1>}> ({
    ^bb0(%arg27: tensor<f32>, %arg28: tensor<i32>, %arg29: tensor<f32>, %arg30: tensor<i32>):
      %75 = "stablehlo.compare"(%arg27, %arg29) <{comparison_direction = #stablehlo<comparison_direction GT>}> : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %76 = "stablehlo.select"(%75, %arg27, %arg29) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
      %77 = "stablehlo.select"(%75, %arg28, %arg30) : (tensor<i1>, tensor<i32>, tensor<i32>) -> tensor<i32>
      "stablehlo.return"(%76, %77) : (tensor<f32>, tensor<i32>) -> ()
    }) {note} : (tensor<4x6xf32>, tensor<4x6xi32>, tensor<f32>, tensor<i32>) -> (tensor<4xf32>, tensor<4xi32>)
    %63 = "stablehlo.reduce_window"(%arg13, %arg15) <{padding = dense<[[0, 0], [1, 1]]> : tensor<2x2xi64>, window_dimensions = array<i64: 1, 2>, window_strides = array<i64: 1, 2>}> ({
    ^bb0(%arg25: tensor<f32>, %arg26: tensor<f32>):
      %74 = "stablehlo.add"(%arg25, %arg26) : (tensor<f32>, tensor<f32>) -> tensor<f32>
      "stablehlo.return"(%74) : (tensor<f32>) -> ()
    }) : (tensor<4x6xf32>, tensor<f32>) -> tensor<4x4xf32>
    %64 = "stablehlo.sort"(%arg13) <{dimension = 1 : i64, is_stable = true}> ({
    ^bb0(%arg23: tensor<f32>, %arg24: tensor<f32>):
      %73 = "stablehlo.compare"(%arg23, %arg24) <{comparison_direction = #stablehlo<comparison_direction LT>}> : (tensor<f32>, tensor<f32>) -> tensor<i1>
      "stablehlo.return"(%73) : (tensor<i1>) -> ()
    }) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %65 = "stablehlo.map"(%arg13) <{dimensions = array<i64: 0, 1>}> ({
    ^bb0(%arg22: tensor<f32>):
      %72 = "stablehlo.tanh"(%arg22) : (tensor<f32>) -> tensor<f32>
      "stablehlo.return"(%72) : (tensor<f32>) -> ()
    }) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %66 = "stablehlo.if"(%arg17) ({
      "stablehlo.return"(%arg13) : (tensor<4x6xf32>) -> ()
    }, {
      "stablehlo.return"(%65) : (tensor<4x6xf32>) -> ()
    }) : (tensor<i1>) -> tensor<4x6xf32>
    %67 = "stablehlo.case"(%arg16) ({
      "stablehlo.return"(%arg13) : (tensor<4x6xf32>) -> ()
    }, {
      %71 = "func.call"(%arg13) <{callee = @unit}> : (tensor<4x6xf32>) -> tensor<4x6xf32>
      "stablehlo.return"(%71) : (tensor<4x6xf32>) -> ()
    }) : (tensor<i32>) -> tensor<4x6xf32>
    %68:2 = "stablehlo.while"(%arg16, %arg13) ({
    ^bb0(%arg20: tensor<i32>, %arg21: tensor<4x6xf32>):
      %70 = "stablehlo.compare"(%arg20, %arg16) <{compare_type = #stablehlo<comparison_type SIGNED>, comparison_direction = #stablehlo<comparison_direction LT>}> : (tensor<i32>, tensor<i32>) -> tensor<i1>
      "stablehlo.return"(%70) : (tensor<i1>) -> ()
    }, {
    ^bb0(%arg18: tensor<i32>, %arg19: tensor<4x6xf32>):
      %69 = "stablehlo.add"(%arg18, %arg18) : (tensor<i32>, tensor<i32>) -> tensor<i32>
      "stablehlo.return"(%69, %arg19) : (tensor<i32>, tensor<4x6xf32>) -> ()
    }) {mhlo.note = "loop"} : (tensor<i32>, tensor<4x6xf32>) -> (tensor<i32>, tensor<4x6xf32>)
    "stablehlo.while"() ({
      "stablehlo.return"(%arg17) : (tensor<i1>) -> ()
    }, {
      "stablehlo.return"() : () -> ()
    }) : () -> ()
    "func.return"(%61) : (tensor<4xf32>) -> ()
  }) : () -> ()
  "func.func"() <{function_type = (tensor<4x6xf32>) -> tensor<4x6xf32>, sym_name = "unit", sym_visibility = "private"}> ({
  ^bb0(%arg12: tensor<4x6xf32>):
    "func.return"(%arg12) : (tensor<4x6xf32>) -> ()
  }) : () -> ()
  "func.func"() <{function_type = (tensor<4x6xf32>, tensor<4xui64>, tensor<2xi64>, tensor<f32>) -> (), sym_name = "calls"}> ({
  ^bb0(%arg6: tensor<4x6xf32>, %arg7: tensor<4xui64>, %arg8: tensor<2xi64>, %arg9: tensor<f32>):
    %51 = "stablehlo.tuple"(%arg6, %arg9) : (tensor<4x6xf32>, tensor<f32>) -> tuple<tensor<4x6xf32>, tensor<f32>>
    %52 = "stablehlo.get_tuple_element"(%51) <{index = 1 : i32}> : (tuple<tensor<4x6xf32>, tensor<f32>>) -> tensor<f32>
    %53:2 = "stablehlo.optimization_barrier"(%arg6, %arg9) : (tensor<4x6xf32>, tensor<f32>) -> (tensor<4x6xf32>, tensor<f32>)
    "stablehlo.optimization_barrier"() : () -> ()
    %54 = "stablehlo.composite"(%arg6) <{composite_attributes = {scale = 2.000000e-01 : f32}, decomposition = @unit, name = "my.unit", version = 1 : i32}> : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %55 = "stablehlo.custom_call"(%arg6, %arg9) <{api_version = 4 : i32, backend_config = {count = 3 : i64, words = ["a", "b"]}, call_target_name = "my.call", has_side_effect = true, operand_layouts = [dense<[1, 0]> : tensor<2xindex>, dense<> : tensor<0xindex>], result_layouts = [dense<[0, 1]> : tensor<2xindex>]}> {mhlo.sharding = "{replicated}"} : (tensor<4x6xf32>, tensor<f32>) -> tensor<4x6xf32>
    %56 = "stablehlo.custom_call"() <{call_target_name = "not-an-identifier"}> : () -> tensor<i32>
    %57 = "stablehlo.rng"(%arg9, %arg9, %arg8) <{rng_distribution = #stablehlo<rng_distribution NORMAL>}> : (tensor<f32>, tensor<f32>, tensor<2xi64>) -> tensor<?x?xf32>
    %58:2 = "stablehlo.rng_bit_generator"(%arg7) <{rng_algorithm = #stablehlo<rng_algorithm THREE_FRY>}> : (tensor<4xui64>) -> (tensor<4xui64>, tensor<3xui32>)
    %59 = "stablehlo.all_reduce"(%arg6) <{channel_handle = #stablehlo.channel_handle<handle = 5, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> ({
    ^bb0(%arg10: tensor<f32>, %arg11: tensor<f32>):
      %60 = "stablehlo.add"(%arg10, %arg11) : (tensor<f32>, tensor<f32>) -> tensor<f32>
      "stablehlo.return"(%60) : (tensor<f32>) -> ()
    }) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    "func.return"() : () -> ()
  }) : () -> ()
  "func.func"() <{function_type = (tensor<4x6xf32>, tensor<6xf32>, tensor<4x6xi32>, tensor<4x6xi1>) -> (), sym_name = "chlo"}> ({
  ^bb0(%arg2: tensor<4x6xf32>, %arg3: tensor<6xf32>, %arg4: tensor<4x6xi32>, %arg5: tensor<4x6xi1>):
    %4 = "chlo.acos"(%arg2) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %5 = "chlo.acosh"(%arg2) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %6 = "chlo.asin"(%arg2) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %7 = "chlo.asinh"(%arg2) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %8 = "chlo.atan"(%arg2) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %9 = "chlo.atanh"(%arg2) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %10 = "chlo.bessel_i1e"(%arg2) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %11 = "chlo.conj"(%arg2) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %12 = "chlo.cosh"(%arg2) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %13 = "chlo.digamma"(%arg2) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %14 = "chlo.erf"(%arg2) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %15 = "chlo.erf_inv"(%arg2) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %16 = "chlo.erfc"(%arg2) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %17 = "chlo.lgamma"(%arg2) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %18 = "chlo.sinh"(%arg2) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %19 = "chlo.square"(%arg2) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %20 = "chlo.tan"(%arg2) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %21 = "chlo.is_inf"(%arg2) : (tensor<4x6xf32>) -> tensor<4x6xi1>
    %22 = "chlo.is_neg_inf"(%arg2) : (tensor<4x6xf32>) -> tensor<4x6xi1>
    %23 = "chlo.is_pos_inf"(%arg2) : (tensor<4x6xf32>) -> tensor<4x6xi1>
    %24 = "chlo.next_after"(%arg2, %arg2) : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %25 = "chlo.polygamma"(%arg2, %arg2) : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %26 = "chlo.zeta"(%arg2, %arg2) : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %27 = "chlo.broadcast_add"(%arg2, %arg3) <{broadcast_dimensions = array<i64: 1>}> : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>
    %28 = "chlo.broadcast_atan2"(%arg2, %arg3) <{broadcast_dimensions = array<i64: 1>}> : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>
    %29 = "chlo.broadcast_divide"(%arg2, %arg3) <{broadcast_dimensions = array<i64: 1>}> : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>
    %30 = "chlo.broadcast_maximum"(%arg2, %arg3) <{broadcast_dimensions = array<i64: 1>}> : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>
    %31 = "chlo.broadcast_minimum"(%arg2, %arg3) <{broadcast_dimensions = array<i64: 1>}> : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>
    %32 = "chlo.broadcast_multiply"(%arg2, %arg3) <{broadcast_dimensions = array<i64: 1>}> : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>
    %33 = "chlo.broadcast_next_after"(%arg2, %arg3) <{broadcast_dimensions = array<i64: 1>}> : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>
    %34 = "chlo.broadcast_polygamma"(%arg2, %arg3) <{broadcast_dimensions = array<i64: 1>}> : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>
    %35 = "chlo.broadcast_power"(%arg2, %arg3) <{broadcast_dimensions = array<i64: 1>}> : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>
    %36 = "chlo.broadcast_remainder"(%arg2, %arg3) <{broadcast_dimensions = array<i64: 1>}> : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>
    %37 = "chlo.broadcast_subtract"(%arg2, %arg3) <{broadcast_dimensions = array<i64: 1>}> : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>
    %38 = "chlo.broadcast_zeta"(%arg2, %arg3) <{broadcast_dimensions = array<i64: 1>}> : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>
    %39 = "chlo.broadcast_and"(%arg4, %arg4) : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi32>
    %40 = "chlo.broadcast_or"(%arg4, %arg4) : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi32>
    %41 = "chlo.broadcast_xor"(%arg4, %arg4) : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi32>
    %42 = "chlo.broadcast_shift_left"(%arg4, %arg4) : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi32>
    %43 = "chlo.broadcast_shift_right_arithmetic"(%arg4, %arg4) : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi32>
    %44 = "chlo.broadcast_shift_right_logical"(%arg4, %arg4) : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi32>
    %45 = "chlo.broadcast_compare"(%arg2, %arg3) <{comparison_direction = #chlo<comparison_direction GE>}> : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xi1>
    %46 = "chlo.broadcast_select"(%arg5, %arg2, %arg2) : (tensor<4x6xi1>, tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %47:2 = "chlo.top_k"(%arg2) <{k = 2 : i64}> : (tensor<4x6xf32>) -> (tensor<4x2xf32>, tensor<4x2xi32>)
    %48 = "chlo.mulhi"(%arg4, %arg4) : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi32>
    %49 = "chlo.broadcast_complex"(%arg2, %arg3) : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xcomplex<f32>>
    %50 = "chlo.constant"() <{value = dense<1> : tensor<2xi32>}> : () -> tensor<2xi32>
    "func.return"() : () -> ()
  }) : () -> ()
  "sdy.mesh"() <{mesh = #sdy.mesh<["x"=2, "y"=4]>, sym_name = "mesh"}> : () -> ()
  "func.func"() <{arg_attrs = [{sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}, {?}p2], replicated={"y"}>}], function_type = (tensor<4x6xf32>) -> tensor<4x6xf32>, sym_name = "sdy"}> ({
  ^bb0(%arg0: tensor<4x6xf32>):
    %0 = "sdy.sharding_constraint"(%arg0) <{sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}> : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %1 = "sdy.reshard"(%0) <{sharding = #sdy.sharding<@mesh, [{"y":(1)2}, {}]>}> : (tensor<4x6xf32>) -> tensor<4x6xf32>
    "sdy.sharding_group"(%1) <{group_id = 21 : i64}> : (tensor<4x6xf32>) -> ()
    %2 = "sdy.manual_computation"(%1) <{in_shardings = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>, manual_axes = #sdy<manual_axes{"x"}>, out_shardings = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>}> ({
    ^bb0(%arg1: tensor<2x6xf32>):
      %3 = "stablehlo.add"(%arg1, %arg1) : (tensor<2x6xf32>, tensor<2x6xf32>) -> tensor<2x6xf32>
      "sdy.return"(%3) : (tensor<2x6xf32>) -> ()
    }) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    "func.return"(%2) : (tensor<4x6xf32>) -> ()
  }) : () -> ()
}) : () -> ()
