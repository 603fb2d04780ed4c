/* An open port whose fabric ends. */
#include <infiniband/umad.h>

#include "expect.h"

int main(void)
{
    static uint8_t buffer[64 + 256];
    int length = 256;
    int port = umad_open_port(NULL, 0);
    MUST(port >= 0);
    EXPECT(umad_register(port, 0x81, 1, 0, NULL), 0);
    puts("open");
    fflush(stdout);
    /* The fabric ends now. This is told once to what waits, so that no program waits in a busy loop. */
    EXPECT(umad_recv(port, buffer, &length, -1), -EIO);
    EXPECT(umad_recv(port, buffer, &length, 20), -ETIMEDOUT);
    EXPECT(umad_recv(port, buffer, &length, 0), -EIO);
    EXPECT(umad_send(port, 0, buffer, 256, 0, 0), -EIO);
    EXPECT(umad_register(port, 0x01, 1, 0, NULL), -EPERM);
    EXPECT(umad_close_port(port), 0);
    EXPECT(umad_open_port(NULL, 0), -ENODEV);
    return wrong;
}
