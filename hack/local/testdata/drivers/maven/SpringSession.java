// SPDX-License-Identifier: Apache-2.0
// Sessions of Spring, kept in a pool by Spring Session over Lettuce: requests of two browsers through its filter, an expiry, a new name, a log-out.
import jakarta.servlet.http.Cookie;
import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import jakarta.servlet.http.HttpSession;
import java.io.IOException;
import java.time.Duration;
import java.util.HashSet;
import java.util.Set;
import java.util.jar.Attributes;
import java.util.jar.JarFile;
import org.springframework.data.redis.connection.RedisStandaloneConfiguration;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.data.redis.core.RedisTemplate;
import org.springframework.data.redis.serializer.RedisSerializer;
import org.springframework.mock.web.MockFilterChain;
import org.springframework.mock.web.MockHttpServletRequest;
import org.springframework.mock.web.MockHttpServletResponse;
import org.springframework.session.Session;
import org.springframework.session.data.redis.RedisIndexedSessionRepository;
import org.springframework.session.data.redis.RedisSessionRepository;
import org.springframework.session.web.http.SessionRepositoryFilter;

public class SpringSession {
  static void equal(Object got, Object wanted) {
    if (!got.equals(wanted)) throw new AssertionError("got " + got + ", and wanted " + wanted);
  }

  // An application that knows nothing of where its sessions are.
  static class Application extends HttpServlet {
    @Override
    protected void doGet(HttpServletRequest request, HttpServletResponse response) throws IOException {
      HttpSession session = request.getSession();
      switch (request.getRequestURI()) {
        case "/visit" -> {
          Integer before = (Integer) session.getAttribute("visits");
          session.setAttribute("visits", before == null ? 1 : before + 1);
          response.getWriter().print(session.getAttribute("visits"));
        }
        case "/rotate" -> response.getWriter().print(request.changeSessionId());
        case "/logout" -> session.invalidate();
        default -> response.sendError(404);
      }
    }
  }

  static class Browser {
    final SessionRepositoryFilter<?> filter;
    Cookie cookie;

    Browser(SessionRepositoryFilter<?> filter) {
      this.filter = filter;
    }

    String get(String page) throws Exception {
      MockHttpServletRequest request = new MockHttpServletRequest("GET", page);
      if (cookie != null) request.setCookies(cookie);
      MockHttpServletResponse response = new MockHttpServletResponse();
      filter.doFilter(request, response, new MockFilterChain(new Application()));
      equal(response.getStatus(), 200);
      if (response.getCookie("SESSION") != null) cookie = response.getCookie("SESSION");
      return response.getContentAsString();
    }
  }

  static void sessions(RedisTemplate<String, Object> template) throws Exception {
    RedisSessionRepository repository = new RedisSessionRepository(template);
    repository.setRedisKeyNamespace("spring");
    repository.setDefaultMaxInactiveInterval(Duration.ofSeconds(500));
    SessionRepositoryFilter<?> filter = new SessionRepositoryFilter<>(repository);
    Browser anna = new Browser(filter);
    Browser ben = new Browser(filter);
    for (String visits : new String[] {"1", "2", "3"}) equal(anna.get("/visit"), visits);
    equal(ben.get("/visit"), "1");
    Set<String> keys = new HashSet<>(template.keys("spring:*"));
    equal(keys.size(), 2);
    for (String key : keys) equal(template.getExpire(key) > 490, true);
    String renamed = anna.get("/rotate");
    Set<String> added = new HashSet<>(template.keys("spring:*"));
    equal(added.size(), 2);
    added.removeAll(keys);
    equal(added, Set.of("spring:sessions:" + renamed));
    ben.get("/logout");
    equal(ben.get("/visit"), "1");
    equal(anna.get("/visit"), "4");
    Session session = repository.findById(renamed);
    equal(session.getAttribute("visits"), 4);
    repository.deleteById(renamed);
    equal(anna.get("/visit"), "1");
  }

  // Its other repository keeps sets of sessions by user, which no pool has.
  static void indexed(RedisTemplate<String, Object> template) {
    RedisIndexedSessionRepository repository = new RedisIndexedSessionRepository(template);
    repository.setRedisKeyNamespace("spring-indexed");
    try {
      repository.save(repository.createSession());
    } catch (RuntimeException e) {
      Throwable cause = e;
      while (cause.getCause() != null) cause = cause.getCause();
      if (!cause.getMessage().contains("unknown command")) throw e;
      return;
    }
    throw new AssertionError("no error");
  }

  // The jar's manifest has the version.
  static String version() throws Exception {
    String jar = RedisSessionRepository.class.getProtectionDomain().getCodeSource().getLocation().getPath();
    try (JarFile file = new JarFile(jar)) {
      return file.getManifest().getMainAttributes().getValue(Attributes.Name.IMPLEMENTATION_VERSION);
    }
  }

  public static void main(String[] arguments) throws Exception {
    var at = new RedisStandaloneConfiguration(System.getenv("FARPOOL_HOST"), Integer.parseInt(System.getenv("FARPOOL_LOCKED_PORT")));
    at.setPassword(System.getenv("FARPOOL_PASSWORD"));
    LettuceConnectionFactory connections = new LettuceConnectionFactory(at);
    connections.afterPropertiesSet();
    connections.start();
    RedisTemplate<String, Object> template = new RedisTemplate<>();
    template.setConnectionFactory(connections);
    template.setKeySerializer(RedisSerializer.string());
    template.setHashKeySerializer(RedisSerializer.string());
    template.afterPropertiesSet();
    sessions(template);
    indexed(template);
    connections.destroy();
    System.out.println("Spring Session " + version());
  }
}
