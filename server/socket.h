/*
 * socket.h: what the system says of a socket.
 */
#ifndef OFFSHOOT_SERVER_SOCKET_H
#define OFFSHOOT_SERVER_SOCKET_H

#include <netinet/in.h>
#include <sys/socket.h>

/* The port of TCP that a socket has here; -1: none. */
static inline int socket_port(int fd)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } a = {0};
    socklen_t n = sizeof a;
    if (getsockname(fd, &a.any, &n)) return -1;
    return a.any.sa_family == AF_INET    ? ntohs(a.v4.sin_port)
           : a.any.sa_family == AF_INET6 ? ntohs(a.v6.sin6_port)
                                         : -1;
}

#endif
