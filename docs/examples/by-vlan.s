; A lookup program: frames of VLAN 10 go to port 1, frames of VLAN 20 to port 2, other tagged frames nowhere,
; and frames without a tag to all ports. Use: sidecore set --switch lan lookup=ebpf:/etc/sidecore/by-vlan.s
;
; r1 points to: u32 ingress port, u32 length, the frame's first 64 bytes. Numbers of ports: sidecore show ports.
    ldxh r2, [r1+20]        ; the type, 12 bytes into the frame
    be16 r2                 ; as the network writes it
    jne r2, 0x8100, everybody
    ldxh r2, [r1+22]        ; the tag: priority, VLAN
    be16 r2
    and r2, 0xfff
    mov r0, 1
    jeq r2, 10, done
    mov r0, 2
    jeq r2, 20, done
    mov r0, -1              ; nobody
    exit
everybody:
    mov r0, -2
done:
    exit
