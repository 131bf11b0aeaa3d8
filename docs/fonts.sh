#!/bin/sh
# Writes Literata and JetBrains Mono into docs/static, each with the characters that the pages in _site use:
# `make site && sh docs/fonts.sh`. It needs npm and pyftsubset (pip install fonttools brotli).
set -e
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
cat _site/*.html _site/*/*.html > "$folder/text"
for package in literata@0.4.3 jetbrains-mono@0.4.1; do
  npm pack --silent --pack-destination "$folder" "@expo-google-fonts/$package"
  tar -xzf "$folder"/*.tgz -C "$folder" && rm "$folder"/*.tgz
  for file in "$folder"/package/*/Literata_400Regular.ttf "$folder"/package/*/Literata_400Regular_Italic.ttf \
    "$folder"/package/*/Literata_600SemiBold.ttf "$folder"/package/*/JetBrainsMono_400Regular.ttf; do
    if [ -e "$file" ]; then
      name=$(basename "$file" .ttf)
      pyftsubset "$file" --text-file="$folder/text" --flavor=woff2 --output-file="docs/static/$name.woff2"
    fi
  done
  cp "$folder/package/LICENSE_FONT" "docs/static/${package%@*}-licence.txt"
  rm -r "$folder/package"
done
