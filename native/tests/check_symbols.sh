#!/bin/sh
# Usage: check_symbols.sh OBJECT...
# The objects compiled for AVX2 and AVX-512 may define nothing that the linker merges with other objects' copies (weak and
# unique symbols): a copy with wide instructions could then run on a processor that lacks them.
found=0
for object; do
  case "$object" in
    *reduce_avx*) ;;
    *) continue ;;
  esac
  found=$((found + 1))
  shared=$(nm -C "$object" | grep -E ' [VWu] ' | grep -vE 'hvd::avx(2|512)::')
  if [ -n "$shared" ]; then
    printf '%s defines symbols that could be merged:\n%s\n' "$object" "$shared" >&2
    exit 1
  fi
done
[ "$found" -gt 0 ] || { echo "no AVX objects were given" >&2; exit 1; }
