#include "stablehlo/algebra/roles.h"

#include <algorithm>
#include <tuple>

namespace flashlift::stablehlo {
namespace {

bool contains(AtomSet set, int atom) { return (set & atom_bit(atom)) != 0; }

size_t position(const std::vector<int>& order, int atom) {
  return static_cast<size_t>(std::find(order.begin(), order.end(), atom) - order.begin());
}

// Chooses the query among the dimensions that only the queries have: a dimension that the programs compare with the
// key, otherwise one without sinks of its own, otherwise the longest. The other dimensions are heads or batches that
// share keys.
int choose_query(const std::vector<int>& candidates, const AtomUse& use, const std::vector<int64_t>& sizes) {
  return *std::max_element(candidates.begin(), candidates.end(), [&](int x, int y) {
    const auto rank = [&](int atom) {
      return std::tuple(contains(use.in_programs, atom), !contains(use.in_sinks, atom), sizes[atom]);
    };
    return rank(x) < rank(y);
  });
}

// Whether the atom is the G of a single token with grouped heads, [B, 1, K, G, D] or [B, K, G, 1, D], which has no
// query atom. In [B, K, 1, S, D], each head has its own keys, and S is the query, as it is where a program compares it
// with the key.
bool is_lone_group(int atom, const AtomUse& use, AtomSet shared) {
  const size_t at = position(use.q_order, atom);
  const bool has_query = std::any_of(use.q_ones.begin(), use.q_ones.end(), [&](int next) { return next != atom; });
  return has_query && !contains(use.in_programs, atom) && at > 0 && at < use.q_order.size() &&
         contains(shared, use.q_order[at - 1]) && at + 1 == use.q_order.size();
}

}  // namespace

std::vector<int> Roles::heads() const {
  std::vector<int> all = kv_head;
  all.insert(all.end(), group.begin(), group.end());
  return all;
}

int64_t extent(const std::vector<int>& atoms, const std::vector<int64_t>& sizes) {
  int64_t product = 1;
  for (const int atom : atoms) {
    product *= sizes[atom];
  }
  return product;
}

Outcome<Roles> assign_roles(const AtomUse& use, const std::vector<int64_t>& sizes) {
  Roles roles;
  const AtomSet shared = use.in_k | use.in_v;
  std::vector<int> shared_order;  // first those that the queries lack, then the others in the queries' order
  for (const int atom : use.q_order) {
    if (contains(shared, atom)) {
      shared_order.push_back(atom);
    }
  }
  std::vector<int> only_q;
  std::vector<int> elsewhere;  // batches that only masks and the output have
  for (const int atom : use.plane) {
    if (contains(shared, atom)) {
      if (!contains(use.in_q, atom)) {
        shared_order.insert(shared_order.begin(), atom);
      }
    } else {
      (contains(use.in_q, atom) ? only_q : elsewhere).push_back(atom);
    }
  }
  std::sort(only_q.begin(), only_q.end(),
            [&](int x, int y) { return position(use.q_order, x) < position(use.q_order, y); });
  if (!only_q.empty() && !(only_q.size() == 1 && is_lone_group(only_q[0], use, shared))) {
    const int query = choose_query(only_q, use, sizes);
    roles.query = {query};
    std::erase(only_q, query);
  }
  // Dimensions that only the queries have are batches over the same keys if they come before all shared ones. The
  // others are heads that share a key-value head. If they come before the key-value head (h = g * kv_heads + k), they
  // are transposed.
  const size_t first_shared = shared_order.empty() ? 0 : position(use.q_order, shared_order.front());
  const size_t last_shared = shared_order.empty() ? 0 : position(use.q_order, shared_order.back());
  std::vector<int> batch_only_q;
  for (const int atom : only_q) {
    const bool before = !shared_order.empty() && position(use.q_order, atom) < first_shared;
    (before ? batch_only_q : roles.group).push_back(atom);
  }
  // A single shared dimension is the key-value head, unless the group is not next to it ([B, T, H, D] over keys [B, T,
  // D]).
  bool last_is_head = !shared_order.empty();
  if (shared_order.size() == 1 && !roles.group.empty()) {
    last_is_head = position(use.q_order, roles.group.front()) == last_shared + 1;
  }
  // Sinks are numbers of heads: what they differ along is no batch.
  const auto has_sinks = [&](int atom) { return contains(use.in_sinks, atom); };
  auto first_head = std::find_if(shared_order.begin(), shared_order.end(), has_sinks);
  if (first_head == shared_order.end() && last_is_head) {
    --first_head;
  }
  roles.kv_head.assign(first_head, shared_order.end());
  shared_order.erase(first_head, shared_order.end());
  // Batches that share keys within another batch are a group, too.
  const bool are_groups = !shared_order.empty() || std::any_of(batch_only_q.begin(), batch_only_q.end(), has_sinks);
  if (are_groups) {
    roles.group.insert(roles.group.begin(), batch_only_q.begin(), batch_only_q.end());
    batch_only_q.clear();
  }
  roles.batch = elsewhere;
  roles.batch.insert(roles.batch.end(), batch_only_q.begin(), batch_only_q.end());
  roles.batch.insert(roles.batch.end(), shared_order.begin(), shared_order.end());
  if (!elsewhere.empty() && roles.batch.size() != elsewhere.size()) {
    return refuse<Reason::kMaskBatch>();
  }
  return roles;
}

}  // namespace flashlift::stablehlo
