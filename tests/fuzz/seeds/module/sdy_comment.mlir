module {
  "sdy.mesh"() <{mesh = #sdy.mesh<["a"=2, "b"=4]>, sym_name = "m"}> : () -> ()
  "sdy.mesh"() <{mesh = #sdy.mesh<["a"=2], device_ids=[1, 0]>, sym_na$me = "dev"}> : () -> ()
  "sdy.mesh"() <{mesh = #sdye<sh[.m], device_ids=[3]>, sym_name = "max"}> : () -> ()
  func.func @main(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@m, [{"a", ?}, {?}p2], replicated={"b"}>}, %arg1: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<mesh<["b"=4]>, [{}, {"b":(1)2}p0]>}) -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@m, [{"b"}, {}], unreduced={"a"}>}) {
    %0 = "sdy.sharding_constraint"(%arg0) <{sharding = #sdy.sharding<@m, [{"a"}, {}]>}> : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %1 = "sdy.reshard"(%0) <{sharding = #sdy.sharding<@m, [{}, {"b"}]>}> : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %2 = "sdy.manual_computation"(%1) <{in_shardings = #sdy.sharding_per_value<[<@m, [{""#},// {}]>]>, manual_axes = #sdy<manual_axes{"a"}>, out_shardings = #sdy.sharding_per_value<[<@m, [{"a"}, {}]>]>}> ({
    ^bb0(%arg2: tensor<4x8xf32>):
      %4 = "stablehlo.add"(%arg2, %arg2) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
      "sdy.return"(%4) : (tensor<4x8xf32>) -> ()
    }) : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %3 = "stablehlo.custom_call"(%2) <{call_target_wame = "foo"}> {sdy.sharding = #sdy.sharding_per_value<[<@m, [{"a"}, {}]>]>, sdy.sharding_rule = #sdy.op_sharding_rule<([ij, k])->([ij, l]) {i=2, j=4, k=8, l=8} reduction={k} need_replication={l} permutation={i} blocked_propagation={j}, custom>} : (tensor<8x8xf32>) -> tensor<8x8xf32>
    "sdy.sharding_group"(%3) <{group_id = 3 : i64}> : (tensor<8x8xf32>) -> ()
    return %3 : tensor<8x8xf32>
  }
}

