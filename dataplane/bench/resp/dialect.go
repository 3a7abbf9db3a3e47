// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"strconv"
)

// A dialect is how a server is asked, and how its replies are read. Keys are redis-benchmark's: key: and twelve digits.
type dialect struct {
	set     func(to []byte, key int, value []byte) []byte
	get     func(to []byte, key int) []byte
	readSet func(from *bufio.Reader) error
	readGet func(from *bufio.Reader, size int) error // fails if the value is missing or has another size
}

var dialects = map[string]dialect{
	"resp":      {setRESP, getRESP, readSetRESP, readGetRESP},
	"memcached": {setMemcached, getMemcached, readSetMemcached, readGetMemcached},
}

const keyBytes = 16

func appendKey(to []byte, key int) []byte {
	var digits [12]byte
	for i := len(digits) - 1; i >= 0; i-- {
		digits[i], key = byte('0'+key%10), key/10
	}
	return append(append(to, "key:"...), digits[:]...)
}

func setRESP(to []byte, key int, value []byte) []byte {
	to = appendKey(append(to, "*3\r\n$3\r\nSET\r\n$16\r\n"...), key)
	to = strconv.AppendInt(append(to, "\r\n$"...), int64(len(value)), 10)
	return append(append(append(to, "\r\n"...), value...), "\r\n"...)
}

func getRESP(to []byte, key int) []byte {
	return append(appendKey(append(to, "*2\r\n$3\r\nGET\r\n$16\r\n"...), key), "\r\n"...)
}

func readSetRESP(from *bufio.Reader) error { return expect(from, "SET", "+OK\r\n") }

func readGetRESP(from *bufio.Reader, size int) error {
	line, err := from.ReadSlice('\n')
	if err != nil {
		return err
	}
	if stated, whole := number(line, len("$")); line[0] != '$' || !whole || stated != size {
		return fmt.Errorf("GET of a key with a value of %d bytes was answered with %q", size, line)
	}
	return skip(from, size)
}

func setMemcached(to []byte, key int, value []byte) []byte {
	to = append(appendKey(append(to, "set "...), key), " 0 0 "...)
	to = append(strconv.AppendInt(to, int64(len(value)), 10), "\r\n"...)
	return append(append(to, value...), "\r\n"...)
}

func getMemcached(to []byte, key int) []byte {
	return append(appendKey(append(to, "get "...), key), "\r\n"...)
}

func readSetMemcached(from *bufio.Reader) error { return expect(from, "set", "STORED\r\n") }

func readGetMemcached(from *bufio.Reader, size int) error {
	line, err := from.ReadSlice('\n')
	if err != nil {
		return err
	}
	// "VALUE key flags bytes"; the flags are 0, as they were set.
	const before = len("VALUE ") + keyBytes + len(" 0 ")
	if stated, whole := number(line, before); len(line) < before || string(line[:len("VALUE ")]) != "VALUE " || !whole || stated != size {
		return fmt.Errorf("get of a key with a value of %d bytes was answered with %q", size, line)
	}
	if err := skip(from, size); err != nil {
		return err
	}
	return expect(from, "get", "END\r\n")
}

func expect(from *bufio.Reader, command, reply string) error {
	line, err := from.ReadSlice('\n')
	if err != nil {
		return err
	}
	if string(line) != reply {
		return fmt.Errorf("%s was answered with %q", command, line)
	}
	return nil
}

// number reads the digits of a line from a position to its end.
func number(line []byte, from int) (value int, whole bool) {
	if len(line) < from+len("0\r\n") || line[len(line)-2] != '\r' {
		return 0, false
	}
	for _, digit := range line[from : len(line)-2] {
		if digit < '0' || digit > '9' || value > 1<<40 {
			return 0, false
		}
		value = value*10 + int(digit-'0')
	}
	return value, true
}

// skip passes over a value and the end of its line.
func skip(from *bufio.Reader, size int) error {
	if _, err := from.Discard(size); err != nil {
		return err
	}
	return expect(from, "a value's end", "\r\n")
}
