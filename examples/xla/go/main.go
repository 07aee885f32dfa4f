// A client of PJRT's C interface in Go, by cgo: loads a plugin, compiles a StableHLO module and runs it on drawn f32
// arguments. It needs neither XLA nor Python.
//
//	go build -o client .
//	FLASHLIFT_PJRT_PLUGIN=/path/to/pjrt_c_api_cpu_plugin.so \
//	  ./client ../attention.mlir /path/to/pjrt_c_api_flashlift-cpu_plugin.so
package main

/*
#cgo CFLAGS: -I${SRCDIR}/..
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>
#include "pjrt.h"

// What Go cannot do by itself: call a function by its address.
static const PJRT_Api* load_plugin(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  const PJRT_Api* (*get_api)(void) = library ? (const PJRT_Api* (*)(void))dlsym(library, "GetPjrtApi") : NULL;
  return get_api ? get_api() : NULL;
}
static PJRT_Error* call_plugin(const PJRT_Api* api, int function, void* args) { return api->functions[function](args); }
static const char* one_device(void) { return PJRT_ONE_DEVICE; }
*/
import "C"

import (
	"errors"
	"fmt"
	"math/rand"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unsafe"
)

// All arguments of a call lie in C's memory, since C keeps pointers between them; freed when the program ends.
func allocate[T any](count int) *T {
	var one T
	return (*T)(C.calloc(C.size_t(count), C.size_t(unsafe.Sizeof(one))))
}

type plugin struct{ api *C.PJRT_Api }

// Every structure of arguments begins with its size.
func call[T any](p plugin, function C.int, args *T) error {
	*(*C.size_t)(unsafe.Pointer(args)) = C.size_t(unsafe.Sizeof(*args))
	failed := C.call_plugin(p.api, function, unsafe.Pointer(args))
	if failed == nil {
		return nil
	}
	message := allocate[C.PJRT_TextArgs](1)
	message.struct_size = C.size_t(unsafe.Sizeof(*message))
	message.object = unsafe.Pointer(failed)
	C.call_plugin(p.api, C.PJRT_Error_Message, unsafe.Pointer(message))
	text := C.GoStringN(message.text, C.int(message.size))
	destroy := allocate[C.PJRT_ObjectArgs](1)
	destroy.struct_size = C.size_t(unsafe.Sizeof(*destroy))
	destroy.object = unsafe.Pointer(failed)
	C.call_plugin(p.api, C.PJRT_Error_Destroy, unsafe.Pointer(destroy))
	return errors.New(text)
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "client:", err)
		os.Exit(1)
	}
}

func (p plugin) await(event unsafe.Pointer) {
	args := allocate[C.PJRT_ObjectArgs](1)
	args.object = event
	must(call(p, C.PJRT_Event_Await, args))
	must(call(p, C.PJRT_Event_Destroy, args))
}

// The shapes of main's arguments, all of f32.
func shapesOf(module string) ([][]int64, error) {
	_, main, found := strings.Cut(module, "@main(")
	arguments, _, closed := strings.Cut(main, "->")
	if !found || !closed {
		return nil, errors.New("the module is no text with a function @main(...) -> ...")
	}
	var shapes [][]int64
	for _, match := range regexp.MustCompile(`tensor<([^>]*)>`).FindAllStringSubmatch(arguments, -1) {
		parts := strings.Split(match[1], "x")
		if parts[len(parts)-1] != "f32" {
			return nil, fmt.Errorf("an argument is tensor<%s>; this example draws f32 only", match[1])
		}
		var shape []int64
		for _, part := range parts[:len(parts)-1] {
			size, err := strconv.ParseInt(part, 10, 64)
			if err != nil {
				return nil, err
			}
			shape = append(shape, size)
		}
		shapes = append(shapes, shape)
	}
	return shapes, nil
}

func (p plugin) drawnBuffer(client, device unsafe.Pointer, shape []int64) unsafe.Pointer {
	count := 1
	dims := unsafe.Slice(allocate[C.int64_t](len(shape)+1), len(shape)+1)
	for i, size := range shape {
		count *= int(size)
		dims[i] = C.int64_t(size)
	}
	data := allocate[float32](count)
	values := unsafe.Slice(data, count)
	for i := range values {
		values[i] = float32(rand.NormFloat64())
	}
	args := allocate[C.PJRT_BufferFromHostArgs](1)
	args.client, args.device = client, device
	args.data = unsafe.Pointer(data)
	args._type = 11 // f32
	args.dims, args.dim_count = &dims[0], C.size_t(len(shape))
	must(call(p, C.PJRT_Client_BufferFromHostBuffer, args))
	p.await(args.done_with_host_buffer)
	C.free(unsafe.Pointer(data))
	return args.buffer
}

func main() {
	if len(os.Args) != 3 {
		must(errors.New("usage: client MODULE PLUGIN"))
	}
	code, err := os.ReadFile(os.Args[1])
	must(err)
	shapes, err := shapesOf(string(code))
	must(err)

	p := plugin{C.load_plugin(C.CString(os.Args[2]))}
	if p.api == nil {
		must(fmt.Errorf("%s is no PJRT plugin, or cannot be loaded", os.Args[2]))
	}
	must(call(p, C.PJRT_Plugin_Initialize, allocate[C.PJRT_InitializeArgs](1)))
	create := allocate[C.PJRT_ClientCreateArgs](1)
	must(call(p, C.PJRT_Client_Create, create))
	devices := allocate[C.PJRT_DevicesArgs](1)
	devices.client = create.client
	must(call(p, C.PJRT_Client_AddressableDevices, devices))

	program := allocate[C.PJRT_Program](1)
	program.struct_size = C.size_t(unsafe.Sizeof(*program))
	program.code, program.code_size = (*C.char)(C.CBytes(code)), C.size_t(len(code))
	program.format, program.format_size = C.CString("mlir"), 4
	compile := allocate[C.PJRT_CompileArgs](1)
	compile.client, compile.program = create.client, program
	compile.options, compile.options_size = C.one_device(), 6
	begin := time.Now()
	must(call(p, C.PJRT_Client_Compile, compile))
	fmt.Printf("compiled in %.1f ms\n", time.Since(begin).Seconds()*1e3)

	inputs := unsafe.Slice(allocate[unsafe.Pointer](len(shapes)+1), len(shapes)+1)
	for i, shape := range shapes {
		inputs[i] = p.drawnBuffer(create.client, *devices.devices, shape)
	}
	executable := allocate[C.PJRT_GetExecutableArgs](1)
	executable.loaded_executable = compile.executable
	must(call(p, C.PJRT_LoadedExecutable_GetExecutable, executable))
	outputCount := allocate[C.PJRT_NumOutputsArgs](1)
	outputCount.executable = executable.executable
	must(call(p, C.PJRT_Executable_NumOutputs, outputCount))

	options := allocate[C.PJRT_ExecuteOptions](1)
	options.struct_size = C.size_t(unsafe.Sizeof(*options))
	outputs := unsafe.Slice(allocate[unsafe.Pointer](int(outputCount.count)), int(outputCount.count))
	argumentLists, outputLists, events := allocate[*unsafe.Pointer](1), allocate[*unsafe.Pointer](1), allocate[unsafe.Pointer](1)
	*argumentLists, *outputLists = &inputs[0], &outputs[0]
	execute := allocate[C.PJRT_ExecuteArgs](1)
	execute.loaded_executable, execute.options = compile.executable, options
	execute.arguments, execute.outputs, execute.events = argumentLists, outputLists, events
	execute.device_count, execute.argument_count = 1, C.size_t(len(shapes))
	for i := 0; i < 5; i++ {
		begin = time.Now()
		must(call(p, C.PJRT_LoadedExecutable_Execute, execute))
		p.await(*events)
		took := time.Since(begin)
		for j, output := range outputs {
			back := allocate[C.PJRT_ToHostArgs](1)
			back.buffer = output
			must(call(p, C.PJRT_Buffer_ToHostBuffer, back)) // the size
			bytes := int(back.size)
			back.destination = C.malloc(back.size)
			must(call(p, C.PJRT_Buffer_ToHostBuffer, back))
			p.await(back.event)
			sum := 0.0
			for _, value := range unsafe.Slice((*float32)(back.destination), bytes/4) {
				sum += float64(value)
			}
			if i == 0 {
				fmt.Printf("result %d: %d bytes, sum %.6g\n", j, bytes, sum)
			}
			C.free(back.destination)
			destroy := allocate[C.PJRT_ObjectArgs](1)
			destroy.object = output
			must(call(p, C.PJRT_Buffer_Destroy, destroy))
		}
		fmt.Printf("run %d: %.2f ms\n", i, took.Seconds()*1e3)
	}
}
