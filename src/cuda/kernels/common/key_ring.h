// Which key tile of a head adds to a tile of d_q when, if key tiles form rings (sm90/key_rings.cuh). The host compiler,
// for a test, and NVRTC read this file.
#pragma once

#ifdef __CUDACC_RTC__
#define FL_RING_FUNCTION __device__ __forceinline__
#else
#define FL_RING_FUNCTION inline
#endif

namespace flashlift::cuda {

// Query tiles between the starts of two key tiles of a ring, 1 or 2: a key tile's part of d_q is in memory two tiles of
// 64 queries after its scores, or one of 128. With these, a distance of two is faster, but rings are then half as long
// (docs/lessons/cuda_backward.md).
constexpr int kRingDistance = 2;

// A key tile's place in its ring.
struct KeyRing {
  int first;  // key tile of the ring
  int size;
  int place;     // of the key tile
  int distance;  // query tiles between the starts of two key tiles

  // The step at which the key tile begins. Before it continues at step 0, it waits for no later key tile.
  FL_RING_FUNCTION int start() const { return (size - 1 - place) * distance; }

  // The key tile that adds to a step's d_q before this one, or -1. ring_tiles: key tiles of a ring.
  FL_RING_FUNCTION int previous(int ring_tiles, int step) const {
    if (place != leader(size, step)) {
      return first + before(size, place);
    }
    // The ring before has all of its key tiles.
    return first == 0 ? -1 : first - ring_tiles + before(ring_tiles, leader(ring_tiles, step));
  }

  // Does no other of the head's key tiles add to a step's d_q after this one?
  FL_RING_FUNCTION bool is_final(int key_tiles, int step) const {
    return first + size == key_tiles && place == before(size, leader(size, step));
  }

 private:
  // The place of the first key tile that comes to a step.
  FL_RING_FUNCTION int leader(int ring_size, int step) const {
    const int leading = ring_size - 1 - (step >> (distance - 1));
    return leading > 0 ? leading : 0;
  }
  static FL_RING_FUNCTION int before(int size, int place) { return place == 0 ? size - 1 : place - 1; }
};

// A key tile among those of `heads` heads, which take turns with whole rings.
struct RingIndex {
  int head;
  KeyRing ring;
  int end;  // the index behind those of its ring
};
FL_RING_FUNCTION RingIndex ring_index(int index, int heads, int key_tiles, int ring_tiles, int distance) {
  const int first = index / (heads * ring_tiles) * ring_tiles;
  const int size = ring_tiles < key_tiles - first ? ring_tiles : key_tiles - first;
  const int within = index - first * heads;
  const int head = within / size;
  const int place = within - head * size;
  return {head, {first, size, place, distance}, index - place + size};
}

}  // namespace flashlift::cuda
