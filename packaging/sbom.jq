# CycloneDX 1.5 of the output of `cargo metadata`: the crates that are linked into the programs, and what each takes.
# $linked has a line `name version` for each of them, $sums one `name version SHA-256` for each crate of Cargo.lock. Static programs
# also have Rust's standard library and glibc in them; $rust and $glibc are their versions.

def lines($text): $text | split("\n") | map(select(. != "") | split(" "));
def beside($name; $version; $licence): {type: "library", "bom-ref": $name, name: $name, $version, licenses: [{expression: $licence}]};
def purl: "pkg:cargo/\(.name)@\(.version)";
(lines($linked) | map({key: join(" "), value: true}) | from_entries) as $is_linked
| (lines($sums) | map({key: .[:2] | join(" "), value: .[2]}) | from_entries) as $sum
| (.packages | map({key: .id, value: .}) | from_entries) as $package
| def linked: $is_linked["\(.name) \(.version)"] == true;
{
  bomFormat: "CycloneDX",
  specVersion: "1.5",
  version: 1,
  metadata: {timestamp: $time, component: {type: "application", "bom-ref": "sidecore", name: "sidecore", version: $version}},
  components: [
    (.packages | sort_by(.name, .version)[] | select(linked)
    | {type: "library", "bom-ref": purl, name, version, purl: purl, licenses: [{expression: ((.license // "NOASSERTION") | gsub("/"; " OR "))}]}
      + ($sum["\(.name) \(.version)"] | if . then {hashes: [{alg: "SHA-256", content: .}]} else {} end)),
    beside("rust-std"; $rust; "MIT OR Apache-2.0"),
    beside("glibc"; $glibc; "LGPL-2.1-or-later")
  ],
  dependencies: [
    .resolve.nodes | sort_by(.id)[] | select($package[.id] | linked)
    | {
        ref: ($package[.id] | purl),
        dependsOn: [.deps[] | select(any(.dep_kinds[]; .kind == null)) | $package[.pkg] | select(linked) | purl] | unique
      }
  ]
}
