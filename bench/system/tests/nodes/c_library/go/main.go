// Goroutines, in Go code and in C code that they call, go through a region whose faults their threads serve themselves:
// Go gives its threads signal stacks of 32 KiB, looks where its handlers run, and interrupts its threads all the time.
// What is not the region's goes to Go's own handler, which makes a panic of it.
//
//	./threads REGION LOCAL_BYTES INTERFACE MANAGER
package main

/*
#include <cxloe.h>
#include <stdlib.h>

static void add(uint64_t *words, size_t pages, size_t own) {
    for (size_t page = 0; page < pages; page++)
        __atomic_fetch_add(&words[page * 512 + own], 1, __ATOMIC_RELAXED);
}
*/
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"
)

const (
	page   = 4096
	words  = page / 8
	many   = 8
	rounds = 2
	holes  = 300
)

func must(holds bool, otherwise ...any) {
	if !holds {
		fmt.Fprintln(os.Stderr, otherwise...)
		os.Exit(1)
	}
}

// A page of a file that ends before it.
func hole() []byte {
	file, err := os.CreateTemp("", "hole")
	must(err == nil, err)
	defer os.Remove(file.Name())
	memory, err := syscall.Mmap(int(file.Fd()), 0, page, syscall.PROT_READ, syscall.MAP_SHARED)
	must(err == nil, err)
	return memory
}

// Whether reading there is a panic.
func panics(at []byte) (panicked bool) {
	defer func() { panicked = recover() != nil }()
	return at[0] == 1
}

func main() {
	must(len(os.Args) == 5, "REGION LOCAL_BYTES INTERFACE MANAGER")
	local, err := strconv.ParseUint(os.Args[2], 0, 64)
	must(err == nil, err)
	var failure C.struct_cxloe_error
	options := (*C.struct_cxloe_options)(C.malloc(C.sizeof_struct_cxloe_options))
	link := (*C.struct_cxloe_link)(C.malloc(C.sizeof_struct_cxloe_link))
	C.cxloe_options_init(options)
	options.local = C.uint64_t(local)
	C.cxloe_link_init(link)
	link.interface_name, link.manager = C.CString(os.Args[3]), C.CString(os.Args[4])
	region := C.cxloe_map_inline(C.CString(os.Args[1]), link, options, &failure)
	must(region != nil, C.GoString(&failure.message[0]))
	pages := int(C.cxloe_size(region)) / page
	first := (*uint64)(C.cxloe_address(region))
	memory := unsafe.Slice(first, pages*words)
	nothing := hole()

	var all sync.WaitGroup
	for own := 0; own < many; own++ {
		all.Add(1)
		go func(own int) {
			defer all.Done()
			for round := 0; round < rounds; round++ {
				if own%2 == 0 {
					C.add((*C.uint64_t)(first), C.size_t(pages), C.size_t(own))
				} else {
					for at := 0; at < pages; at++ {
						atomic.AddUint64(&memory[at*words+own], 1)
					}
				}
				runtime.GC()
			}
		}(own)
	}
	all.Add(1)
	go func() {
		defer all.Done()
		debug.SetPanicOnFault(true)
		for i := 0; i < holes; i++ {
			must(panics(nothing), "a hole can be read")
			atomic.AddUint64(&memory[i%pages*words+many], 1)
		}
	}()
	all.Wait()

	for at := 0; at < pages; at++ {
		for own := 0; own < many; own++ {
			found := memory[at*words+own]
			must(found == rounds, "page", at, "goroutine", own, "found", found)
		}
	}
	var counters C.struct_cxloe_counters
	must(C.cxloe_count(region, &counters, &failure) == 0, C.GoString(&failure.message[0]))
	must(C.cxloe_unmap(region, &failure) == 0, C.GoString(&failure.message[0]))
	fmt.Println(many, "goroutines,", pages, "pages,", counters.evicted, "evicted,", holes, "holes")
}
