// Attention from Go, by cgo: causal attention with ALiBi's slopes as a captured tensor, checked against plain loops.
//
//	export CGO_CFLAGS="$(pkg-config --cflags flashlift)" CGO_LDFLAGS="$(pkg-config --libs flashlift)"
//	go run .
package main

/*
#include <stdlib.h>
#include "flashlift/flashlift.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"math"
	"math/rand"
	"os"
	"unsafe"
)

const (
	heads  = 8
	length = 256
	depth  = 64

	problem = "attn h8 s256 d64 f32 causal " +
		"score_mod(slopes: f32[8]) {" +
		"  %0 = load slopes[h]; %1 = sub kv, q; %2 = to_f32 %1; %3 = mul %0, %2; %4 = add score, %3;" +
		"  return %4 }"
)

// A dense f32 tensor in C's memory: C keeps pointers between what a call is given, which Go's memory must not hold.
type tensor struct {
	c      *C.DLTensor
	values []float32
}

func newTensor(shape ...int) tensor {
	size := 1
	extents := allocate[C.int64_t](len(shape))
	for i, extent := range shape {
		unsafe.Slice(extents, len(shape))[i] = C.int64_t(extent)
		size *= extent
	}
	values := allocate[float32](size)
	c := allocate[C.DLTensor](1)
	c.data = unsafe.Pointer(values)
	c.device = C.DLDevice{device_type: C.kDLCPU}
	c.ndim = C.int32_t(len(shape))
	c.dtype = C.DLDataType{code: C.kDLFloat, bits: 32, lanes: 1}
	c.shape = extents
	return tensor{c, unsafe.Slice(values, size)}
}

func randomTensor(shape ...int) tensor {
	t := newTensor(shape...)
	for i := range t.values {
		t.values[i] = float32(rand.NormFloat64())
	}
	return t
}

// Zeroed memory of C, which lives as long as the program.
func allocate[T any](count int) *T {
	var one T
	return (*T)(C.calloc(C.size_t(count), C.size_t(unsafe.Sizeof(one))))
}

func toError(failed *C.FlashliftError) error {
	if failed == nil {
		return nil
	}
	defer C.flashlift_error_destroy(failed)
	return errors.New(C.GoString(C.flashlift_error_message(failed)))
}

func compile(text string) (*C.FlashliftAttention, error) {
	cText := C.CString(text)
	defer C.free(unsafe.Pointer(cText))
	var attention *C.FlashliftAttention
	return attention, toError(C.flashlift_attention_compile(cText, nil, &attention))
}

// One row of the result, by plain loops.
func expectedRow(q, k, v, slopes []float32, head, row int) []float64 {
	at := func(position int) int { return (head*length + position) * depth }
	result, sum := make([]float64, depth), 0.0
	for key := 0; key <= row; key++ {
		score := 0.0
		for d := 0; d < depth; d++ {
			score += float64(q[at(row)+d]) * float64(k[at(key)+d])
		}
		weight := math.Exp(score/math.Sqrt(depth) + float64(slopes[head])*float64(key-row))
		sum += weight
		for d := range result {
			result[d] += weight * float64(v[at(key)+d])
		}
	}
	for d := range result {
		result[d] /= sum
	}
	return result
}

func run() error {
	attention, err := compile(problem)
	if err != nil {
		return err
	}
	defer C.flashlift_attention_destroy(attention)

	q, k, v := randomTensor(1, heads, length, depth), randomTensor(1, heads, length, depth), randomTensor(1, heads, length, depth)
	out, slopes := newTensor(1, heads, length, depth), newTensor(heads)
	for h := range slopes.values {
		slopes.values[h] = float32(math.Exp2(-float64(h + 1)))
	}
	captures := allocate[*C.DLTensor](1)
	*captures = slopes.c
	arguments := allocate[C.FlashliftArguments](1)
	arguments.struct_size = C.size_t(unsafe.Sizeof(*arguments))
	arguments.q, arguments.k, arguments.v, arguments.out = q.c, k.c, v.c, out.c
	arguments.captures, arguments.capture_count = captures, 1
	if err := toError(C.flashlift_attention_run(attention, arguments, nil)); err != nil {
		return err
	}

	largest := 0.0
	for head := 0; head < heads; head++ {
		row := (head*31 + 5) % length
		for d, want := range expectedRow(q.values, k.values, v.values, slopes.values, head, row) {
			got := float64(out.values[(head*length+row)*depth+d])
			largest = math.Max(largest, math.Abs(got-want))
		}
	}
	if !(largest < 1e-4) {
		return fmt.Errorf("the largest error is %g", largest)
	}
	fmt.Printf("%s: largest error %.1e\n", C.GoString(C.flashlift_attention_implementation(attention)), largest)
	if _, err := compile("attn h8 s256 d64 casual"); err == nil {
		return errors.New("a misspelt problem was compiled")
	}
	return nil
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}
